"""`tinker-actors policies`: what a store holds, how two snapshots differ, exports, and what may go."""

from __future__ import annotations

import argparse
import math
import shutil
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from rich.table import Table
from rich.text import Text

from tinker_actors.console.bounds import check_number
from tinker_actors.console.printing import print_json, terminal
from tinker_actors.console.stored import find_snapshot
from tinker_actors.errors import ConfigError, PolicyError, UnknownPolicyError
from tinker_actors.policies import Handle, HandleKind, Retention, SnapshotStore

_KINDS: tuple[HandleKind, ...] = ("sampler_weights", "weights")
_OF_ADAPTERS = ("rank", "alpha", "target_modules", "targets")


def add_policies(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its actions to the command line."""
    policies = commands.add_parser("policies", help="look at, compare, export and delete stored policies")
    actions = policies.add_subparsers(dest="action", required=True, metavar="ACTION")
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("store", metavar="STORE", help="a run folder, a store's folder or its URL")
    listing = actions.add_parser("ls", parents=[store], help="snapshots and checkpoints")
    listing.add_argument("policy", nargs="?", metavar="POLICY", help="of this policy only")
    listing.add_argument("--json", action="store_true", help="for machines")
    show = actions.add_parser("show", parents=[store], help="all that a manifest says, with its files checked")
    show.add_argument("handle", metavar="HANDLE", help="tinker://..., POLICY/NUMBER, or POLICY for its newest snapshot")
    diff = actions.add_parser("diff", parents=[store], help="how far two snapshots are apart, module by module")
    diff.add_argument("handles", metavar="HANDLE", nargs=2)
    export = actions.add_parser("export", parents=[store], help="a snapshot as a directory for other programs")
    export.add_argument("handle", metavar="HANDLE")
    export.add_argument("path", metavar="PATH", help="the directory to make")
    export.add_argument("--merged", action="store_true", help="merged into the base, as a transformers directory")
    for name, text in (("pin", "keep from being deleted, by whomever"), ("unpin", "undo pin")):
        actions.add_parser(name, parents=[store], help=text).add_argument("handles", metavar="HANDLE", nargs="+")
    _add_rm(actions.add_parser("rm", parents=[store], help="delete snapshots or checkpoints"))
    calls = {"ls": _ls, "show": _show, "diff": _diff, "export": _export, "pin": _pin, "unpin": _pin, "rm": _rm}
    for name, call in calls.items():
        actions.choices[name].set_defaults(call=lambda options, _overrides, call=call: call(options))


def _add_rm(remove: argparse.ArgumentParser) -> None:
    remove.add_argument(
        "handles",
        metavar="HANDLE",
        nargs="*",
        help="what to delete; with --keep-last or --older-than, POLICY for its snapshots or POLICY/weights for its "
        "training checkpoints (default: the snapshots of all policies)",
    )
    remove.add_argument("--newest", action="store_true", help="even a policy's newest snapshot, which may be served")
    remove.add_argument("--keep-last", type=int, metavar="N", help="all but the newest N of a policy")
    remove.add_argument(
        "--older-than", type=float, metavar="DAYS", help="those stored longer ago; never the newest or a pinned one"
    )


def _ls(options: argparse.Namespace) -> int:
    store = _store(options.store)
    policies = store.policies() if options.policy is None else (_known(store, options.policy),)
    found = [(snapshot, kind) for policy in policies for kind in _KINDS for snapshot in store.list(policy, kind)]
    pinned = {handle for policy in policies for kind in _KINDS for handle in store.pinned(policy, kind)}
    console = terminal()
    if options.json:
        rows = [{**asdict(snapshot), "pinned": snapshot.handle in pinned} for snapshot, _ in found]
        print_json(rows)
        return 0
    if not found:
        console.print(Text(f"{store.root} holds no snapshots or checkpoints"), soft_wrap=True)
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("handle", "step", "kind", "base model", "age", "pinned"):
        table.add_column(column, justify="right" if column in ("step", "age") else "left", no_wrap=True)
    for snapshot, _ in found:
        pin = "pinned" if snapshot.handle in pinned else ""
        age = _age(time.time() - snapshot.created_at)
        row = (snapshot.handle, str(snapshot.step), snapshot.kind, snapshot.base_model, age, pin)
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    return 0


def _show(options: argparse.Namespace) -> int:
    store = _store(options.store)
    snapshot = find_snapshot(store, options.handle)
    store.fetch(snapshot)
    manifest = store.manifest(snapshot.handle)
    table = Table.grid(padding=(0, 3))
    facts = {key: value for key, value in asdict(manifest).items() if key not in ("files", "spec")}
    for moment in ("created_at", "expires_at"):
        if facts[moment] is not None:
            facts[moment] = datetime.fromtimestamp(facts[moment], UTC).astimezone().isoformat(" ", "seconds")
    spec = {key: value for key, value in (manifest.spec or {}).items() if key not in facts}
    if manifest.kind == "full":
        spec = {key: value for key, value in spec.items() if key not in _OF_ADAPTERS}
    for key, value in {**facts, "path": snapshot.path, **spec}.items():
        table.add_row(Text(key, style="bold"), Text(str(value)))
    for name, digest in sorted(manifest.files.items()):
        table.add_row(Text(name, style="bold"), Text(f"sha256 {digest}"))
    terminal().print(table)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from tinker_actors.models.differences import change_norms

    store = _store(options.store)
    first, second = (find_snapshot(store, handle) for handle in options.handles)
    console = terminal()
    one, two = (store.manifest(snapshot.handle) for snapshot in (first, second))
    pairs = {"step": (one.step, two.step), "base_model": (one.base_model, two.base_model), "kind": (one.kind, two.kind)}
    specs = (one.spec or {}, two.spec or {})
    pairs |= {key: (specs[0].get(key), specs[1].get(key)) for key in sorted({*specs[0], *specs[1]} - set(pairs))}
    for key, (before, after) in pairs.items():
        if before != after:
            console.print(Text(f"{key}: {before} -> {after}"), soft_wrap=True)
    if any(Handle.parse(snapshot.handle).kind == "weights" for snapshot in (first, second)):
        raise ConfigError("weights are compared between snapshots (sampler_weights), not training checkpoints")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("module", "change", "norm", "share"):
        table.add_column(column, justify="left" if column == "module" else "right", no_wrap=True)
    for name, (change, norm) in change_norms(store.fetch(first), store.fetch(second)).items():
        share = f"{change / norm:.2%}" if norm else ""
        table.add_row(Text(name), f"{change:.4g}", f"{norm:.4g}", share)
    console.print(table)
    return 0


def _export(options: argparse.Namespace) -> int:
    store = _store(options.store)
    snapshot, target = find_snapshot(store, options.handle), Path(options.path)
    if target.exists():
        raise ConfigError(f"{target} exists already; a new directory is needed")
    if options.merged:
        from tinker_actors.training.engine import TrainingEngine

        engine = TrainingEngine(snapshot.base_model, str(store.root))
        engine.export_base(engine.fork(snapshot.handle, policy="export"), target)
    elif Handle.parse(snapshot.handle).kind == "weights":
        raise ConfigError(f"{snapshot.handle} is a training checkpoint; export it with --merged, or export a snapshot")
    else:
        shutil.copytree(store.fetch(snapshot), target, ignore=shutil.ignore_patterns("manifest.json"))
    terminal().print(Text(f"{snapshot.handle} is in {target}"), soft_wrap=True)
    return 0


def _rm(options: argparse.Namespace) -> int:
    store = _store(options.store)
    if options.keep_last is not None or options.older_than is not None:
        return _expire(store, options)
    if not options.handles:
        raise ConfigError("rm names nothing; a HANDLE, --keep-last or --older-than is needed")
    found = [find_snapshot(store, handle) for handle in options.handles]
    for snapshot in found:
        kind = Handle.parse(snapshot.handle).kind
        if kind == "sampler_weights" and not options.newest and snapshot == store.latest(snapshot.policy_id):
            raise PolicyError(f"{snapshot.handle} is the newest of its policy and may be served; --newest deletes it")
        store.delete(snapshot.handle)
        terminal().print(Text(f"deleted {snapshot.handle}"), soft_wrap=True)
    return 0


def _expire(store: SnapshotStore, options: argparse.Namespace) -> int:
    """Delete what is over a bound."""
    days = options.older_than
    if days is not None and not (math.isfinite(days) and days > 0):
        raise ConfigError(f"--older-than is {days}; a positive number of days is needed")
    check_number("--keep-last", options.keep_last, least=1)
    if options.newest:
        raise ConfigError("--newest deletes what is named; --keep-last and --older-than never delete the newest")
    retention = Retention(keep_last=options.keep_last, max_age=None if days is None else days * 86400)
    chosen = [_policy_and_kind(store, text) for text in options.handles or store.policies()]
    gone = [handle for policy, kind in chosen for handle in store.expire(policy, retention, kind=kind)]
    for line in [f"deleted {handle}" for handle in gone] or ["nothing is over these bounds"]:
        terminal().print(Text(line), soft_wrap=True)
    return 0


def _pin(options: argparse.Namespace) -> int:
    store = _store(options.store)
    call = store.pin if options.action == "pin" else store.unpin
    for snapshot in [find_snapshot(store, handle) for handle in options.handles]:
        call(snapshot.handle)
        terminal().print(Text(f"{options.action}ned {snapshot.handle}"), soft_wrap=True)
    return 0


def _known(store: SnapshotStore, policy: str) -> str:
    if policy not in store.policies():
        raise UnknownPolicyError(f"policy {policy!r} is not in {store.root}; it has {list(store.policies())}")
    return policy


def _policy_and_kind(store: SnapshotStore, text: str) -> tuple[str, HandleKind]:
    """What POLICY or POLICY/weights stands for."""
    policy, _, kind = text.partition("/")
    if kind not in ("", *_KINDS):
        raise ConfigError(f"{text!r} is a single one; POLICY or POLICY/weights goes with --keep-last and --older-than")
    return _known(store, policy), cast(HandleKind, kind or "sampler_weights")


def _store(text: str) -> SnapshotStore:
    if "://" in text:
        return SnapshotStore(text)
    folder = Path(text)
    if not folder.is_dir():
        raise ConfigError(f"{text} is no folder; a run folder, a store's folder or its URL is needed")
    return SnapshotStore(folder / "policies" if (folder / "config.toml").is_file() else folder)


def _age(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
