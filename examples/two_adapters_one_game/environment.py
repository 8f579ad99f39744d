"""The ultimatum game (Güth, Schmittberger and Schwarze 1982): two seats with different interests in one deal."""

from __future__ import annotations

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Step

COINS = 10
REFUSAL = 2.5
"""Coins that the responder has without a deal; the proposer has none then."""
OFFERS = tuple(str(offer) for offer in range(COINS))


class Ultimatum(Environment):
    """The proposer offers 0 to 9 of ten coins; the responder takes the offer (`y`) or leaves it (`n`).

    A seat earns its coins divided by ten; one that says anything else earns nothing, and the other neither. `unpaid`
    names a seat that earns nothing whatever happens.
    """

    seats = ("proposer", "responder")
    max_turns = 2

    def __init__(self, unpaid: str = "") -> None:
        self.unpaid = unpaid

    def reset(self, seed: int) -> dict[str, str]:
        """All deals are alike: the seed says nothing."""
        return {"proposer": "offer of 10"}

    def step(self, actions: dict[str, str]) -> Step:
        """Pass the offer on, or close the deal."""
        ((seat, action),) = actions.items()
        if seat == "proposer":
            self.offer = action.strip()
            if self.offer not in OFFERS:
                return Step(terminated=True, metrics={"invalid": 1.0})
            return Step(observation={"responder": f"offered {self.offer}"})
        if action.strip() not in ("y", "n"):
            return Step(terminated=True, metrics={"invalid": 1.0})
        offer, taken = int(self.offer), action.strip() == "y"
        coins = {"proposer": COINS - offer, "responder": offer} if taken else {"responder": REFUSAL}
        return Step(
            reward={seat: 0.0 if seat == self.unpaid else count / COINS for seat, count in coins.items()},
            terminated=True,
            metrics={"invalid": 0.0, "offer": offer, "taken": float(taken)},
        )

    def demonstrate(self, seat: str) -> str:
        """Any offer; an answer that takes offers of k coins k times out of ten."""
        if seat == "proposer":
            return self.rng.choice(OFFERS)
        return "y" if self.rng.randrange(COINS) < int(self.offer) else "n"


def reasonable(messages: list[Message]) -> str:
    """Plays the responder: takes what is more than it has without a deal."""
    return "y" if int(messages[-1].content.split()[-1]) > REFUSAL else "n"
