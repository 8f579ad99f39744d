"""Two seats write something at the same time; what each earns depends on its own first letter, and on the other's."""

from tinker_actors.environments import Environment, Step


def letter(text: str) -> float:
    """The first character as a number from 0 to 1."""
    return ord(text[0]) % 11 / 10 if text else 0.0


class Letters(Environment):
    seats = ("x", "o")
    max_turns = 1

    def __init__(self, zeroed: str = "", shared: bool = False) -> None:
        self.zeroed, self.shared = zeroed, shared

    def reset(self, seed):
        return {"x": f"x{seed % 10}", "o": f"o{seed % 10}"}

    def step(self, actions):
        own = {seat: letter(text) for seat, text in actions.items()}
        rewards = {"x": own["x"] - own["o"], "o": own["o"] - own["x"]}
        if self.shared:
            rewards = dict.fromkeys(self.seats, own["x"] + own["o"])
        if self.zeroed:
            rewards[self.zeroed] = 0.0
        return Step(reward=rewards, terminated=True, metrics={"letter": own["x"]})

    def demonstrate(self, seat):
        return {"x": "1", "o": "2"}[seat]


def highest(messages):
    """The text that earns most."""
    return "m"


def drawn(messages, rng, seat, among="ab"):
    """A letter by the episode's own luck."""
    return rng.choice(among)
