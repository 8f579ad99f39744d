"""A game of one move whose environment writes down with how many threads its process computes."""

import json
import os

import torch

from tinker_actors.environments import Environment, Step


class Reporting(Environment):
    max_turns = 1

    def __init__(self, path: str = "") -> None:
        found = {"pid": os.getpid(), "threads": torch.get_num_threads(), "openmp": os.environ.get("OMP_NUM_THREADS")}
        with open(path, "a") as file:
            file.write(json.dumps(found) + "\n")

    def reset(self, seed):
        return "go"

    def step(self, action):
        return Step(reward=float(len(action)), terminated=True)
