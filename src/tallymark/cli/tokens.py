"""`tallymark tokens create | list | revoke`: who may use `tallymark serve`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tallymark.cli import connections, output
from tallymark.cli.person import user
from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import TokenRole

if TYPE_CHECKING:
    from tallymark.store.postgres.tokens import Token, Tokens

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Who may use `tallymark serve`.")


@app.command()
def create(
    role: Annotated[TokenRole, typer.Option("--role", help="What its bearer may do.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Who it is for; the audit names it. Default: the role.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="90d", help="For how long; default: until revoked.")
    ] = None,
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Make a token. It is shown this once; only its hash is kept."""
    from tallymark.settings.quantity import parse_duration

    try:
        lasting = None if expires is None else parse_duration(expires)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--expires {error}", remedy="write --expires 90d") from None
    token, made = _tokens(database).create(name or str(role), role, who=user(), expires=lasting)
    # Not through `emit`, which masks tokens: this verb exists to hand this one over.
    if as_json:
        sys.stdout.write(
            json.dumps({"token": token, **cast(dict[str, object], output.plain(_plain(made)))}) + "\n"
        )
        return
    output.remark(f"{made.name}: {role.sentence} {_until(made)}. It is not shown again.")
    # Alone on stdout, for TOKEN=$(tallymark tokens create …).
    sys.stdout.write(token + "\n")


@app.command("list")
def list_(database: connections.DatabaseOption = None, as_json: output.JsonOption = False) -> None:
    """All tokens, also those that no longer count."""
    found = _tokens(database).all()
    output.emit(
        [_plain(each) for each in found],
        as_json=as_json,
        human=lambda: (
            output.table(
                ("number", "name", "role", "made", "by", "expires", "revoked"),
                [
                    (
                        each.number,
                        each.name,
                        each.role,
                        each.created_at.isoformat(" ", "seconds"),
                        each.created_by,
                        each.expires_at.isoformat(" ", "seconds") if each.expires_at else "",
                        each.revoked_at.isoformat(" ", "seconds") if each.revoked_at else "",
                    )
                    for each in found
                ],
            )
            if found
            else "there is no token yet: `tallymark tokens create --role viewer`"
        ),
    )


@app.command()
def revoke(
    which: Annotated[str, typer.Argument(metavar="NAME|NUMBER", help="As `tokens list` shows it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit.")] = "",
    database: connections.DatabaseOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """End a token. It is refused from the next request on."""
    done = _tokens(database).revoke(which, who=user(), reason=reason)
    if done is None:
        raise Problem(f"no token {which} is in use", remedy="`tallymark tokens list` shows them")
    output.emit(_plain(done), as_json=as_json, human=lambda: f"{done.name} is revoked")


def _tokens(database: str | None) -> Tokens:
    from tallymark.cli.servedatabases import tokens_in
    from tallymark.store.postgres.tokens import Tokens

    settings = connections.load(database=database).settings
    return Tokens(tokens_in(settings, database), schema=settings.schema_name)


def _until(token: Token) -> str:
    return (
        f"Until {token.expires_at.isoformat(' ', 'seconds')}" if token.expires_at else "Until it is revoked"
    )


def _plain(token: Token) -> dict[str, object]:
    return {
        "number": token.number,
        "name": token.name,
        "role": token.role.value,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }
