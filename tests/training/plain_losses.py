"""The losses once more, in plain Python floats, each written from its source rather than from the package.

`held` are the log-probs where a formula passes no gradient; a difference quotient moves `logprobs` alone.
"""

import math


def term(name, index, rows, settings):
    """Term of one token. `rows` has logprobs, held, old, advantages, weights, sequences: lists of one length."""
    logprob, held, old = rows["logprobs"][index], rows["held"][index], rows["old"][index]
    advantage = rows["advantages"][index]
    low, high = settings.get("clip_low", 0.0), settings.get("clip_high")
    if name == "cross_entropy":
        return -rows["weights"][index] * logprob
    if name == "importance_sampling":
        return -math.exp(logprob - old) * advantage
    if name == "ppo":
        return -pessimistic(math.exp(logprob - old), advantage, low, high)
    if name == "dual_clip_ppo":
        lower = pessimistic(math.exp(logprob - old), advantage, low, high)
        return -max(lower, settings["dual_clip"] * advantage) if advantage < 0 else -lower
    if name == "cispo":
        return -max(low, min(high, math.exp(held - old))) * logprob * advantage
    if name == "dro":
        return -(logprob * advantage - settings["beta"] / 2 * (logprob - old) ** 2)
    if name == "gspo":
        ratio = sequence_ratio(index, rows, "sequence_mean") * math.exp(logprob - held)
        return -pessimistic(ratio, advantage, low, high)
    ratio = sequence_ratio(index, rows, settings["ratio"])
    if name == "truncated_is":
        return -min(ratio, high) * logprob * advantage
    assert name == "masked_is"
    return -ratio * logprob * advantage if low <= ratio <= high else 0.0


def pessimistic(ratio, advantage, low, high):
    clipped = low if ratio < low else high if ratio > high else ratio
    return min(ratio * advantage, clipped * advantage)


def sequence_ratio(index, rows, level):
    mine = [place for place, sequence in enumerate(rows["sequences"]) if sequence == rows["sequences"][index]]
    ratios = [math.exp(rows["held"][place] - rows["old"][place]) for place in mine]
    if level == "token":
        return ratios[mine.index(index)]
    product = math.prod(ratios)
    return product if level == "sequence_product" else product ** (1 / len(ratios))


def kl(estimator, logprob, reference):
    ratio = math.exp(reference - logprob)
    return {"k1": -math.log(ratio), "k2": math.log(ratio) ** 2 / 2, "k3": ratio - 1 - math.log(ratio)}[estimator]


def slope(name, index, rows, settings, step=1e-6):
    """d (sum of all terms) / d logprobs[index], by a central difference."""

    def total(change):
        moved = list(rows["logprobs"])
        moved[index] += change
        changed = {**rows, "logprobs": moved}
        return sum(term(name, place, changed, settings) for place in range(len(moved)))

    return (total(step) - total(-step)) / (2 * step)
