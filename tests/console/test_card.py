"""A request's page says all that its outline says."""

from counterseal.approvals.packet_formats import WHOLE, RowKey, outline
from counterseal.web.console.approvals import packet_card


def texts_of(value):
    """Every piece of text in a card or an outline, origins of arguments included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield getattr(value, "origin_text", "")
        for one in value:
            yield from texts_of(one)


async def test_nothing_of_the_outline_is_left_out(bank):
    for approval_id in (await bank.notice(), await bank.closing(), await bank.refund()):
        packet = await bank.packet(approval_id)
        now = bank.clock()
        told = outline(packet, WHOLE._replace(quoted=False), now=now)
        shown = set(texts_of(packet_card(packet, now=now)))
        so_far = f"{packet.so_far} approved"
        if packet.needed:
            so_far += f". {packet.needed}"
        elsewhere = {" → ", so_far, "unchanged: ", "not stated: "}
        for group in told.groups:
            for row in group:
                if row.key in (RowKey.EXPIRES, RowKey.CONSEQUENCE):
                    continue
                for line in row.lines:
                    texts = {line.origin_text, *(part.text for part in line.parts)}
                    assert texts - shown - elsewhere == set()


async def test_what_changes_comes_first_and_what_stays_is_said_to(bank):
    packet = await bank.packet(await bank.closing())
    card = packet_card(packet, now=bank.clock())
    told = [(one.name, one.before[0].text, one.after[0].text) for one in card.differences]
    assert ("status", "open", "closed") in told
    assert card.others == (("owner", (("Ann Lee", True),), True),)


async def test_where_an_argument_comes_from_stands_beside_it(bank):
    packet = await bank.packet(await bank.refund())
    arguments = packet_card(packet, now=0.0).arguments
    found = {one.name: (one.origin_text, one.origin) for one in arguments}
    assert found == {
        "order": ("from the user", "user"),
        "amount": ("from untrusted text", "untrusted"),
    }


async def test_a_value_that_says_where_it_comes_from_is_not_believed(bank):
    packet = await bank.packet(await bank.notice(text="  (from the user)"))
    assert [one.origin for one in packet_card(packet, now=0.0).arguments] == [None, None]
