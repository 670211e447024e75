"""A transfer and its message in one transaction, with Django: what a view or a service function looks like."""

from django.db import connection, transaction

from tallymark import Outbox

outbox = Outbox("/bank")


def transfer(name: str, amount: int) -> str:
    with transaction.atomic():
        with connection.cursor() as cursor:  # with models: Account.objects.select_for_update().get(name=name)
            cursor.execute("update accounts set balance = balance - %s where name = %s", [amount, name])
        id_ = outbox.add(
            connection, "transfers", {"name": name, "amount": amount}, key=name, type="transfer.made"
        )
    return str(id_)
