"""The one data contract of the package: tokens, messages, turns, trajectories, groups and datums.

Token-in, token-out: history is kept as tokens and only appended to. See `tinker_actors.data.datums` for the worked
example of target coordinates.
"""

from tinker_actors.data.datums import Datum, rl_datums, sft_datums
from tinker_actors.data.endings import EpisodeEnd, TurnEnd
from tinker_actors.data.images import Image
from tinker_actors.data.inputs import Chunk, ImageChunk, ModelInput, TextChunk, concatenate
from tinker_actors.data.messages import Message, Role, ToolCall, ToolList, tool_results
from tinker_actors.data.rewards import all_equal
from tinker_actors.data.sampled_json import read_sampled_json
from tinker_actors.data.seeds import derive_seed
from tinker_actors.data.trajectories import (
    Episode,
    Group,
    SamplingRecord,
    Task,
    Trajectory,
    Turn,
    turns_from_prompts,
)

__all__ = [
    "Chunk",
    "Datum",
    "Episode",
    "EpisodeEnd",
    "Group",
    "Image",
    "ImageChunk",
    "Message",
    "ModelInput",
    "Role",
    "SamplingRecord",
    "Task",
    "TextChunk",
    "ToolCall",
    "ToolList",
    "Trajectory",
    "Turn",
    "TurnEnd",
    "all_equal",
    "concatenate",
    "derive_seed",
    "read_sampled_json",
    "rl_datums",
    "sft_datums",
    "tool_results",
    "turns_from_prompts",
]
