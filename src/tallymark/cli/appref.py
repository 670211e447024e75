"""`app:inbox`, `app:apply`: finds the object that a reference names, in the user's own code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable

from tallymark.errors import UsageError
from tallymark.inbox.definition import Definition
from tallymark.observe.masking import mask

_FORM = "write it as module:name, as in app:inbox for `inbox = Inbox(…)` in app.py"
_FUNCTION_FORM = "write it as module:name, as in app:apply for `def apply(tx, batch)` in app.py"


def inbox_of(reference: str) -> Definition:
    """The inbox that the reference names; what is wrong with it, in a line or two."""
    module_name, path = _parts(reference, "inbox", _FORM)
    _set_up_django()
    module = _imported(module_name)
    found = _named(module, path)
    if found is None:
        near = ", ".join(sorted(name for name, each in vars(module).items() if isinstance(each, Definition)))
        raise UsageError(
            f"there is no {path} in {module_name}",
            remedy=f"its inboxes are: {near}" if near else f"{_FORM}; {module_name} has none",
        )
    if not isinstance(found, Definition):
        raise UsageError(f"{reference} is {type(found).__name__}, not an Inbox", remedy=_FORM)
    return found


def function_of(reference: str) -> Callable[..., object]:
    """The function that the reference names."""
    module_name, path = _parts(reference, "function", _FUNCTION_FORM)
    found = _named(_imported(module_name), path)
    if not callable(found):
        what = "there is no" if found is None else "not a function:"
        raise UsageError(f"{what} {path} in {module_name}", remedy=_FUNCTION_FORM)
    return found


def _parts(reference: str, what: str, form: str) -> tuple[str, str]:
    module_name, _, path = reference.partition(":")
    if not module_name or not path or not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"{reference!r} names no {what}", remedy=form)
    # As `python -m` does: what stands in the current folder can be imported.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return module_name, path


def _named(module: object, path: str) -> object:
    found: object = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _imported(module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name} here ({os.getcwd()})",
                remedy=f"{_FORM}, from the folder it is in",
            ) from error
        raise UsageError(
            f"{module_name} needs the module {error.name}, which is not installed",
            remedy="install it and run again",
        ) from error
    except UsageError:
        raise
    except Exception as error:
        # The user's own code failed while it was imported: the last line of theirs says where. A syntax error has no
        # line that ran, and names its own.
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        if isinstance(error, SyntaxError):
            where = ""
        raise UsageError(
            f"importing {module_name} failed: {type(error).__name__}: {mask(str(error))}{where}",
            remedy="mend it; --verbose before the verb shows the whole traceback",
        ) from error


def _set_up_django() -> None:
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        try:
            import django
        except ModuleNotFoundError:
            return
        django.setup()
