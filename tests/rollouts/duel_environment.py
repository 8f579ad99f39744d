"""Two seats: both name a number at once, then the one with the lower number names another."""

from tinker_actors.environments import Environment, Step


class Duel(Environment):
    seats = ("a", "b")

    def reset(self, seed):
        self.first = True
        return {"a": "a, a number", "b": "b, a number"}

    def step(self, actions):
        if self.first:
            self.first = False
            lower = "a" if actions["a"] < actions["b"] else "b"
            return Step(observation={lower: "lower; again"}, reward={lower: -1.0})
        return Step(reward={"a": 1.0, "b": 2.0}, terminated=True)

    def demonstrate(self, seat):
        return {"a": "1", "b": "2"}[seat]
