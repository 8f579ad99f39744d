"""The commands of the gateway as argparse knows them; what they do is loaded once one is called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve`."""
    serve = commands.add_parser("serve", help="serve models, policies and jobs over HTTP to many clients")
    serve.add_argument(
        "--model",
        metavar="NAME[=BASE]",
        action="append",
        default=[],
        help="a base model to serve, and what it is called in the catalogue if that differs (repeatable)",
    )
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1); others than this host's need keys")
    serve.add_argument("--port", type=int, help="(default: 8400); 0 takes any that is free")
    serve.add_argument("--root", help="folder of all that is kept (default: runs/service)")
    serve.add_argument("--config", metavar="SERVE.toml", help="all settings; options win over it")
    serve.add_argument("--log-json", action="store_true", default=None, help="write ROOT/serve.log as JSON lines")
    serve.set_defaults(call=_serve)


def _serve(options: argparse.Namespace, _overrides: Sequence[str]) -> int:
    from tinker_actors.console.serve import serve_command

    return serve_command(options)
