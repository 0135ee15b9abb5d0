"""Puts the classes of installed entry points into ESPnet's class registries.

ESPnet keeps its choices (``--model``, ``--decoder``, ...) in ``ClassChoices``
objects that a task class lists in ``class_choices_list``, and discovers nothing by
itself. An entry point in the group ``espnet2.<task>.<registry>``, for instance
``espnet2.asr.decoder``, adds one class to one of them; any package may declare some.

torch calls :func:`autoload` at the end of ``import torch``, through the entry point
group ``torch.backends``. ESPnet's task modules all import torch near their top, so
at that moment ``espnet2.tasks.asr`` or ``espnet2.tasks.abs_task`` may be half
imported. What is there in every order is the moment when a task class is created:
``AbsTask.__init_subclass__``. So ``AbsTask`` gets such a hook, as soon as it exists.

Only the standard library is imported here, and little of it: this module is part of
every ``import torch`` in the environment. The classes themselves are loaded when the
task that wants them is created, not before.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from importlib.metadata import entry_points  # torch imports it too, so it costs nothing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from importlib.metadata import EntryPoint

__all__ = [
    "SWITCH",
    "WARPRNNT",
    "WARPRNNT_SWITCH",
    "autoload",
    "group_prefix",
    "provide_warprnnt",
    "register",
    "register_in_workers",
]

SWITCH = "ESPNET_SAMPLED_RNNT_AUTOLOAD"
"""Environment variable; "0" leaves registering to explicit calls of ``register``."""

WARPRNNT_SWITCH = "ESPNET_SAMPLED_RNNT_WARPRNNT"
"""Environment variable; "1" provides ``warprnnt_pytorch`` where there is none."""

WARPRNNT = "warprnnt_pytorch"

WARNING_PREFIX = "espnet-sampled-rnnt: "

_TASK_BASE_MODULE = "espnet2.tasks.abs_task"
_TASK_BASE_CLASS = "AbsTask"
_RESERVED_NAMES = frozenset({"none", "nil", "null"})  # mean "no class" to ESPnet

_hooked_bases: set[type] = set()
_said: set[str] = set()


def autoload() -> None:
    """Register, unless ``ESPNET_SAMPLED_RNNT_AUTOLOAD=0``; never raise.

    torch calls this while it is being imported, where an exception would break every
    program of the environment, so a fault ends in a warning.
    """
    try:
        if os.environ.get(SWITCH, "1").strip() != "0":
            register()
    except Exception as error:
        _warn(f"could not register with ESPnet: {_describe(error)}")


def register() -> None:
    """Make every ESPnet task, imported already or later, take the entry points.

    Cheap, imports no ESPnet module, and may be called any number of times.
    """
    if not any(isinstance(finder, _TaskBaseFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TaskBaseFinder())
    _add_warprnnt_finder()
    _hook_task_base()


def provide_warprnnt() -> None:
    """Let ``import warprnnt_pytorch`` give ours, here and in processes started here.

    For ESPnet's own transducers, which import their loss from there; see
    ``docs/warprnnt.md``. A ``warprnnt_pytorch`` that is installed stays what it is.
    The same as ``ESPNET_SAMPLED_RNNT_WARPRNNT=1`` in the environment.
    """
    os.environ[WARPRNNT_SWITCH] = "1"
    _add_warprnnt_finder()


def register_in_workers() -> None:
    """Also register in the processes that this one starts by ``multiprocessing``.

    A spawned worker is a new interpreter that knows nothing of the launcher. What it
    does get is a pickled copy of this process's ``_config``, and workers of workers
    inherit it; an object in there that registers as it is unpickled does the rest.
    ``_config`` is private to ``multiprocessing``, hence the caution.
    """
    from multiprocessing import process

    config = getattr(process.current_process(), "_config", None)
    if isinstance(config, dict):
        config["espnet_sampled_rnnt"] = _RegistersWhenUnpickled()


def group_prefix(module_name: str) -> str | None:
    """Entry-point group prefix for the tasks of a module, None if it has no tasks.

    >>> group_prefix("espnet2.tasks.asr")
    'espnet2.asr'

    ESPnet3 holds copies of ESPnet2's tasks with registries of their own. They take the
    same classes:

    >>> group_prefix("espnet3.systems.esp2_asr.task")
    'espnet2.asr'
    """
    match = re.fullmatch(
        r"espnet2\.tasks\.(\w+)|espnet3\.systems\.esp2_(\w+)\.task", module_name
    )
    return f"espnet2.{match[1] or match[2]}" if match else None


class _TaskBaseFinder:
    """Import finder that finds nothing, but notices when ``AbsTask`` comes to be."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != _TASK_BASE_MODULE:
            # Where ``abs_task`` itself was half imported when we were registered, its
            # end cannot be seen; the next import of anything tells that it came.
            _hook_task_base()
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                _call_after_import(spec)
                return spec
        return None


def _add_warprnnt_finder() -> None:
    if not any(isinstance(finder, _WarprnntFinder) for finder in sys.meta_path):
        sys.meta_path.append(_WarprnntFinder())


class _WarprnntFinder:
    """Import finder, asked last, that gives a ``warprnnt_pytorch`` where one is wanted.

    The switch is read at each such import, not when the finder is put in place.
    """

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != WARPRNNT or os.environ.get(WARPRNNT_SWITCH, "").strip() != "1":
            return None
        # Finders that came later may know a real one.
        finders = list(sys.meta_path)
        later = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in later:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, path, target)
            if spec is not None:
                return spec
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, origin="espnet_sampled_rnnt.warprnnt")

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty module, as Python makes it."""

    def exec_module(self, module: Any) -> None:
        """Give ``module`` the public names of ours."""
        from espnet_sampled_rnnt import warprnnt

        module.__doc__ = warprnnt.__doc__
        module.__all__ = list(warprnnt.__all__)
        for name in warprnnt.__all__:
            setattr(module, name, getattr(warprnnt, name))


def _call_after_import(spec: ModuleSpec) -> None:
    """Let the module of ``spec`` be followed by :func:`_hook_task_base`."""
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        _hook_task_base()

    # On the instance, which serves this one module: the loader stays what it is to
    # whoever asks it for source, code or resources.
    loader.exec_module = exec_module


def _hook_task_base() -> None:
    """Fill registries as each task class is created, and of those that exist."""
    base = getattr(sys.modules.get(_TASK_BASE_MODULE), _TASK_BASE_CLASS, None)
    if base is None or base in _hooked_bases:
        return
    _hooked_bases.add(base)
    previous = base.__dict__.get("__init_subclass__")

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if previous is None:
            super(base, cls).__init_subclass__(**kwargs)
        else:
            previous.__get__(None, cls)(**kwargs)
        _fill_registries(cls)

    base.__init_subclass__ = classmethod(init_subclass)
    for cls in _subclasses(base):
        _fill_registries(cls)


def _subclasses(base: type) -> Iterator[type]:
    for cls in type.__subclasses__(base):
        yield cls
        yield from _subclasses(cls)


def _fill_registries(task: type) -> None:
    """Add the classes of all matching entry points to a task's registries."""
    prefix = group_prefix(task.__module__)
    if prefix is None:
        return
    try:
        installed = entry_points()  # one scan of the environment, some milliseconds
        registries = {
            f"{prefix}.{choices.name}": choices
            for choices in getattr(task, "class_choices_list", ())
        }
        for group, choices in registries.items():
            for entry_point in installed.select(group=group):
                _add(entry_point, choices)
    except Exception as error:
        _warn(f"could not fill the registries of {task}: {_describe(error)}")


def _add(entry_point: EntryPoint, choices: Any) -> None:
    """Add one entry point's class to ``choices``, an ESPnet ``ClassChoices``."""
    name = entry_point.name.lower()  # as ESPnet stores and looks up names
    try:
        new = entry_point.load()
    except (Exception, SystemExit) as error:  # a module may exit where it is imported
        _warn(f"{_identify(entry_point)} cannot be loaded: {_describe(error)}")
        return
    base = choices.base_type or object
    present = choices.classes.get(name)
    if present is new:
        return
    if name in _RESERVED_NAMES:
        fault = "its name means 'no class' to ESPnet"
    elif not isinstance(new, type) or not issubclass(new, base):
        fault = f"must be a subclass of {_full_name(base)}, got {new!r}"
    elif present is not None:
        fault = f"the name already stands for {_full_name(present)}"
    else:
        choices.classes[name] = new
        return
    _warn(f"{_identify(entry_point)} is left out: {fault}")


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _identify(entry_point: EntryPoint) -> str:
    try:
        distribution = entry_point.dist
        owner = f"distribution {distribution.metadata['Name']} {distribution.version}"
    except Exception:  # the metadata may be as broken as what it describes
        owner = "an unknown distribution"
    return (
        f"entry point {entry_point.name!r} = {entry_point.value!r} "
        f"of group {entry_point.group!r}, from {owner},"
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _warn(text: str) -> None:
    """Warn once a process; print where warnings are errors, as nothing may escape."""
    if text in _said:
        return
    _said.add(text)
    try:
        warnings.warn(WARNING_PREFIX + text, stacklevel=2)
    except Exception:
        print(WARNING_PREFIX + text, file=sys.stderr)


class _RegistersWhenUnpickled:
    """Registers in whatever process it is unpickled in, and stays there to do so."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _register_in_worker, ()


def _register_in_worker() -> _RegistersWhenUnpickled:
    register()
    return _RegistersWhenUnpickled()
