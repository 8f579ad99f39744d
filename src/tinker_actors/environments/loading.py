"""From a name or a path to an environment. What is loaded is described by plain data, so that workers load it too."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tinker_actors.environments.environment import Environment
from tinker_actors.environments.libraries import LIBRARIES, library_environment
from tinker_actors.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent
_SCALARS: tuple[type, ...] = (bool, int, float, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Which environment, as data that any process can load.

    Attributes:
        source: A shipped environment's name, `path/to/file.py`, `path/to/file.py:Class`, `package.module:Class`, or
            one of another library, such as `gymnasium:FrozenLake-v1`.
        options: Keyword arguments of the constructor.
    """

    source: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def load(self) -> EnvironmentFactory:
        """As `load_environment`."""
        return load_environment(self.source, **self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFactory:
    """Makes one environment per episode.

    Attributes:
        name: What tasks call the environment.
        environment: Its class.
        spec: What it was loaded from; a path in it is absolute.
    """

    name: str
    environment: type[Environment]
    spec: EnvironmentSpec

    def __call__(self) -> Environment:
        """A fresh instance, for one episode."""
        return self.environment(**self.spec.options)


def load_environment(source: str, **options: Any) -> EnvironmentFactory:
    """Load an environment and check its options.

    Args:
        source: A shipped environment's name, a file or folder, `path/to/file.py:Class`, or `package.module:Class`. A
            file with exactly one `Environment` subclass needs no class name; a folder's is in its `environment.py`.
            One of another library is named as `LIBRARIES` says, such as `gymnasium:FrozenLake-v1`.
        options: Keyword arguments of the constructor.

    Raises:
        ConfigError: Nothing is found, it can't be imported, it holds no such class, or an option doesn't fit; says
            what is known and what comes close.
    """
    library, _, target = source.partition(":")
    if ":" in source and library in LIBRARIES:
        cls = library_environment(library, target, options)
        return EnvironmentFactory(name=source, environment=cls, spec=EnvironmentSpec(source=source, options=options))
    path, colon, class_name = source.rpartition(":") if _names_class(source) else (source, "", "")
    if path.endswith(".py") or "/" in path or "\\" in path or (Path(path).is_dir() and path.startswith(".")):
        file = _file(path)
        cls = _class(_import_file(file), class_name, str(file))
        name, absolute = _name_of(file), f"{file}{colon}{class_name}"
    elif colon:
        cls = _class(_import_module(path), class_name, path)
        name, absolute = class_name, source
    else:
        file = _shipped(source)
        cls = _class(_import_file(file), "", str(file))
        name, absolute = source, source
    _check_options(name, cls, options)
    return EnvironmentFactory(name=name, environment=cls, spec=EnvironmentSpec(source=absolute, options=options))


def load_function(source: str) -> Callable[..., Any]:
    """A function of the user's.

    Args:
        source: `path/to/file.py:function` or `package.module:function`.

    Raises:
        ConfigError: It isn't found, or can't be imported; or what is found is no function.
    """
    place, _, name = source.rpartition(":")
    module = _import_file(_file(place)) if place.endswith(".py") else _import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{name!r} in {place} is {found!r}; a function is needed")
    return found


def shipped_environments() -> tuple[str, ...]:
    """Names of the environments that come with the package."""
    return tuple(sorted(file.parent.name for root in _roots() for file in root.glob("*/environment.py")))


def _names_class(source: str) -> bool:
    """Whether the part behind the last colon is a class name, rather than the rest of a path such as `C:\\x.py`."""
    return ":" in source and source.rpartition(":")[2].isidentifier()


def _roots() -> tuple[Path, ...]:
    """Where shipped environments lie: inside an installed package, or beside the sources in a checkout."""
    candidates = (_PACKAGE / "_shipped_environments", _PACKAGE.parent.parent / "environments")
    return tuple(root for root in candidates if root.is_dir())[:1]


def _shipped(name: str) -> Path:
    for root in _roots():
        if name.isidentifier() and (file := root / name / "environment.py").is_file():
            return file
    known = shipped_environments()
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"unknown environment {name!r}; {hint}known ones are {', '.join(known) or 'none'}; a file is given as "
        "path/to/file.py or path/to/file.py:Class, a class in a package as package.module:Class"
    )


def _file(path: str) -> Path:
    file = Path(path).expanduser().absolute()
    if file.is_dir():
        file = file / "environment.py"
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    return file


def _name_of(file: Path) -> str:
    return file.parent.name if file.name == "environment.py" else file.stem


def _import_file(file: Path) -> ModuleType:
    # a file that was edited since it was loaded is another module
    digest = hashlib.blake2b(f"{file} {file.stat().st_mtime_ns}".encode(), digest_size=6).hexdigest()
    module_name = f"tinker_actors_environment_{_name_of(file)}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"file {file} is not Python source; a .py file is needed")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickling look their module up there
    # The boundary to user code that runs at import: whatever it raises is the file's fault.
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user code: any failure is named in one line
        del sys.modules[module_name]
        raise ConfigError(f"file {file} can't be imported: {_described(error, file)}") from error
    return module


def _import_module(name: str) -> ModuleType:
    # The same boundary as above, for an installed package.
    try:
        return importlib.import_module(name)
    except Exception as error:  # user code: any failure is named in one line
        raise ConfigError(f"module {name!r} can't be imported: {_described(error, None)}") from error


def _described(error: Exception, file: Path | None) -> str:
    line = f"line {error.lineno}, " if isinstance(error, SyntaxError) else ""
    traceback = error.__traceback__
    while traceback is not None:
        if file is not None and traceback.tb_frame.f_code.co_filename == str(file):
            line = f"line {traceback.tb_lineno}, "
        traceback = traceback.tb_next
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{line}{type(error).__name__}: {' '.join(text.split())}"


def _class(module: ModuleType, name: str, where: str) -> type[Environment]:
    own = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, Environment)
        and value is not Environment
        and value.__module__ == module.__name__
    }
    if name:
        value = getattr(module, name, None)
        if value is None:
            close = difflib.get_close_matches(name, own, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"{where} has no class {name!r}; {hint}its environments are {_listed(own)}")
        if not (inspect.isclass(value) and issubclass(value, Environment)):
            raise ConfigError(f"{name!r} in {where} is not a subclass of Environment; those there are {_listed(own)}")
        found = value
    elif len(own) == 1:
        (found,) = own.values()
    elif own:
        raise ConfigError(f"{where} holds several environments, {_listed(own)}; name one, as in file.py:{min(own)}")
    else:
        raise ConfigError(f"{where} holds no environment; a class that derives from Environment is needed")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(f"{found.__name__} in {where} lacks {' and '.join(missing)}")
    return found


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_options(name: str, cls: type[Environment], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(cls).parameters
    known = [
        key
        for key, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    # `class Environment` has no constructor of its own: then there is nothing to give
    unknown = [] if takes_any and cls.__init__ is not object.__init__ else [key for key in options if key not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"environment {name!r} has no option {unknown[0]!r}{hint} (its options are {', '.join(known) or 'none'})"
        )
    missing = [key for key in known if parameters[key].default is inspect.Parameter.empty and key not in options]
    if missing:
        raise ConfigError(f"environment {name!r} needs the option {missing[0]!r}")
    hints = _hints(cls)
    for key, value in options.items():
        wanted = hints.get(key)
        if wanted in _SCALARS and not _fits(value, wanted):
            raise ConfigError(
                f"option {key!r} of environment {name!r} is {value!r} ({type(value).__name__}); "
                f"{wanted.__name__} is needed"
            )


def _hints(cls: type[Environment]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__)
    except (NameError, TypeError, AttributeError):  # annotations that only a type checker can resolve
        return {}


def _fits(value: object, wanted: type) -> bool:
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)
