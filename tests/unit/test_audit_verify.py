"""Checking the chain: sealed history can't be changed unseen without a key."""

import json
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from counterseal.audit import GENESIS, CallFields, Event, EventType, Head, columns_of, extend
from counterseal.audit.chain import (
    BODY,
    Checkpoint,
    Link,
    digest_of,
    hash_of,
    link_hash,
    make_checkpoint,
    sealed_heads,
)
from counterseal.audit.events import erasure_event
from counterseal.audit.verify import LATE_MICROS, MAX_FINDINGS, FindingKind, RecordVerifier
from counterseal.keys import Key, KeyRing, Purpose

TENANTS = ("acme", "zeta")
SEGMENTS = ("aa", "bb", "cc")
BEGAN = 1_767_225_600_000_000


def key(name="audit-1"):
    private = Ed25519PrivateKey.generate()
    return Key(
        purpose=Purpose.AUDIT,
        key_id=os.urandom(8).hex(),
        file=Path(f"{name}.pem"),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        private=private,
        public=private.public_key(),
    )


RING = KeyRing([key()])
SIGNER = RING.signer("audit")


@dataclass
class Row:
    tenant: str
    link: Link
    columns: tuple | None

    @property
    def id(self):
        return self.link.event_id

    def become(self, **changes):
        self.link = self.link._replace(**changes)


@dataclass
class Log:
    """What a store keeps of the record, open to anybody who can write to it."""

    rows: list[Row] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    now: int = BEGAN

    def tell(self, tenant, segment, event=None, later=1):
        self.now += later
        columns = columns_of(event or an_event(tenant, len(self.rows)))
        head = self.heads(tenant).get(segment, GENESIS)
        link = extend(tenant, segment, head, columns, self.now, os.urandom(16))
        self.rows.append(Row(tenant, link, columns))

    def heads(self, tenant):
        found = {}
        for row in self.of(tenant):
            found[row.link.segment] = row.link.head
        return found

    def of(self, tenant):
        rows = [row for row in self.rows if row.tenant == tenant]
        return sorted(rows, key=lambda row: row.link[:2])

    def sealed_by(self, tenant):
        return [one for one in self.checkpoints if one.tenant == tenant]

    def seal(self, tenant):
        before = self.sealed_by(tenant)
        sealed = sealed_heads(before)
        grown = {
            name: head for name, head in self.heads(tenant).items() if sealed.get(name) != head
        }
        if grown:
            last = before[-1] if before else None
            self.checkpoints.append(make_checkpoint(tenant, grown, last, self.now / 1e6, SIGNER))

    def erase(self, tenant, segment, count):
        """As a store does it: the oldest ones, but never what tells of an erasure."""
        old = [row for row in self.of(tenant) if row.columns and row.columns[0] != "audit.erased"]
        for row in old[:count]:
            row.columns = None
            row.become(salt=None)
        if old[:count]:
            until = old[:count][-1].link.number
            gone = erasure_event(tenant, self.now / 1e6, len(old[:count]), until)
            self.tell(tenant, segment, gone)

    def erased_until(self, tenant):
        told = [row for row in self.of(tenant) if row.columns and row.columns[0] == "audit.erased"]
        return max((json.loads(row.columns[BODY])["until"] for row in told), default=0)

    def is_sealed(self, row):
        head = sealed_heads(self.sealed_by(row.tenant)).get(row.link.segment)
        return head is not None and row.link.seq <= head.seq

    def check(self, tenant, ring=RING, page=7, **options):
        verifier = RecordVerifier(tenant, self.sealed_by(tenant), ring, **options)
        rows = [(row.link, row.columns) for row in self.of(tenant)]
        for start in range(0, len(rows), page):
            verifier.feed(rows[start : start + page])
        return verifier.report()

    def check_all(self, **options):
        return [self.check(tenant, **options) for tenant in TENANTS]


def an_event(tenant, number):
    caller = CallFields(tenant, "run_1", f"call_{number}", "save", "1.0.0", "agent", None, "t")
    return Event(EventType.SUCCEEDED, caller, BEGAN / 1e6, "SUCCESS", body={"number": number})


def a_log(*, seals=(3, 6), events=9, segments=("aa", "bb"), tenants=TENANTS):
    """`events` for each segment of each tenant, sealed after some of them."""
    log = Log()
    for number in range(1, events + 1):
        for tenant in tenants:
            for segment in segments:
                log.tell(tenant, segment)
            if number in seals:
                log.seal(tenant)
    return log


@st.composite
def logs(draw, *, erases=True):
    """Several tenants and segments, sealed and erased now and then."""
    log = Log()
    words = ["tell"] * 6 + ["seal"] + ["erase"] * erases
    for word in draw(st.lists(st.sampled_from(words), min_size=4, max_size=40)):
        tenant, segment = draw(st.sampled_from(TENANTS)), draw(st.sampled_from(SEGMENTS))
        if word == "tell":
            log.tell(tenant, segment, later=draw(st.integers(0, 2)))
        elif word == "seal":
            log.seal(tenant)
        else:
            log.erase(tenant, segment, draw(st.integers(1, 4)))
    return log


# --- nothing is blamed without reason -------------------------------------------------------------


@given(logs(), st.integers(1, 9))
def test_an_untouched_log_has_no_findings(log, page):
    for tenant in TENANTS:
        report = log.check(tenant, page=page)
        rows = log.of(tenant)
        assert report.ok, report.findings
        assert report.events == report.sealed + report.unsealed == len(rows)
        assert report.sealed == sum(log.is_sealed(row) for row in rows)
        assert report.erased == sum(row.columns is None for row in rows)
        assert report.segments == len({row.link.segment for row in rows})
        assert report.checkpoints == len(log.sealed_by(tenant))


@given(logs())
def test_knowing_of_erasures_beforehand_changes_no_finding(log):
    for tenant in TENANTS:
        told = [row for row in log.of(tenant) if row.columns and row.columns[0] == "audit.erased"]
        known = [(row.id, json.loads(row.columns[BODY])["until"]) for row in told]
        assert log.check(tenant, erasures=known) == log.check(tenant)


def test_an_empty_record_is_in_order():
    report = RecordVerifier("acme", ()).report()
    assert report.ok
    assert report.model_dump() == {
        "tenant": "acme",
        "ok": True,
        "events": 0,
        "segments": 0,
        "sealed": 0,
        "unsealed": 0,
        "erased": 0,
        "erased_unsealed": 0,
        "checkpoints": 0,
        "found": 0,
        "findings": [],
    }


# --- whoever can write to the store, and has no key -----------------------------------------------


def change_text(draw, log, row):
    place = draw(st.integers(0, 13))
    columns = list(row.columns)
    columns[place] = draw(st.sampled_from([None, "x", 7.25, b"\xff", "", "acme "]))
    if columns == list(row.columns):
        columns[place] = "another"
    row.columns = tuple(columns)


def change_text_and_digest(draw, log, row):
    row.columns = (*row.columns[:10], "another", *row.columns[11:])
    row.become(digest=digest_of(row.columns, row.link.salt))


def change_text_and_own_hash(draw, log, row):
    """One row as somebody would write it who knows how chains are made."""
    before = max(
        (
            one.link.head
            for one in log.of(row.tenant)
            if one.link.segment == row.link.segment and one.link.seq < row.link.seq
        ),
        default=GENESIS,
        key=lambda head: head.seq,
    )
    change_text_and_digest(draw, log, row)
    link = row.link
    row.become(hash=link_hash(row.tenant, link.segment, before, link.number, link.digest))


def change_bytes(draw, log, row):
    which = draw(st.sampled_from(["salt", "digest", "hash"]))
    there = getattr(row.link, which)
    row.become(**{which: draw(st.sampled_from([there[::-1], there[:-1], b"", bytes(32), "text"]))})


def change_place(draw, log, row):
    row.become(seq=draw(st.sampled_from([0, -1, row.link.seq + 1, row.link.seq - 1, 10**6])))


def change_number(draw, log, row):
    taken = {one.link[:2] for one in log.of(row.tenant)}
    wanted = st.one_of(
        st.integers(BEGAN - 5, BEGAN + 80),
        st.sampled_from([row.link.number + 1, row.link.number - 1]),
    )
    row.become(number=draw(wanted.filter(lambda one: (one, row.link.segment) not in taken)))


def change_segment(draw, log, row):
    others = [name for name in (*SEGMENTS, "zz") if name != row.link.segment]
    taken = {one.link[:2] for one in log.of(row.tenant)}
    free = [name for name in others if (row.link.number, name) not in taken]
    row.become(segment=draw(st.sampled_from(free)))


def change_tenant(draw, log, row):
    other = next(name for name in TENANTS if name != row.tenant)
    if row.link[:2] in {one.link[:2] for one in log.of(other)}:
        log.rows.remove(row)
    row.tenant = other


def delete(draw, log, row):
    log.rows.remove(row)


def erase(draw, log, row):
    row.columns = None
    row.become(salt=None)


def erase_by_half(draw, log, row):
    if draw(st.booleans()):
        row.columns = None
    else:
        row.become(salt=None)


def swap(draw, log, row):
    """Two rows' texts, or everything but where they lie."""
    others = [one for one in log.rows if one.columns and one is not row]
    if not others:
        return delete(draw, log, row)
    other = draw(st.sampled_from(others))
    row.columns, other.columns = other.columns, row.columns
    mine, theirs = row.link, other.link
    if draw(st.booleans()):
        row.become(**theirs._replace(number=mine.number, segment=mine.segment)._asdict())
        other.become(**mine._replace(number=theirs.number, segment=theirs.segment)._asdict())
    return None


def insert(draw, log, row):
    """A row of one's own behind a sealed one, however well it is made."""
    link = row.link
    taken = {one.link[:2] for one in log.of(row.tenant)}
    number = next(n for n in range(link.number, link.number + 99) if (n, link.segment) not in taken)
    columns, salt = columns_of(an_event(row.tenant, 999)), os.urandom(16)
    made = extend(row.tenant, link.segment, link.head, columns, number, salt)
    seq = draw(st.sampled_from([link.seq + 1, link.seq, 1, 10**6]))
    seal = draw(st.sampled_from([made.hash, link.hash, bytes(32)]))
    log.rows.append(Row(row.tenant, made._replace(seq=seq, number=number, hash=seal), columns))


TAMPERING = [
    change_text,
    change_text_and_digest,
    change_text_and_own_hash,
    change_bytes,
    change_place,
    change_number,
    change_segment,
    change_tenant,
    delete,
    erase,
    erase_by_half,
    swap,
    insert,
]


@pytest.mark.parametrize("tamper", TAMPERING, ids=lambda tamper: tamper.__name__)
@given(data=st.data())
def test_whatever_is_done_to_a_sealed_event_is_found_where_it_was_done(tamper, data):
    log = data.draw(logs())
    log.tell("acme", "aa")
    log.seal("acme")
    sealed = [row for row in log.rows if log.is_sealed(row) and row.columns is not None]
    if tamper is insert:
        # Behind the last sealed place is the unsealed part; see what can't be found below.
        ends = {
            (tenant, name): head.seq
            for tenant in TENANTS
            for name, head in sealed_heads(log.sealed_by(tenant)).items()
        }
        sealed = [row for row in sealed if ends[row.tenant, row.link.segment] > row.link.seq]
        if not sealed:
            return
    row = data.draw(st.sampled_from(sealed))
    tenant, link = row.tenant, row.link
    by_count = tamper is erase and link.number <= log.erased_until(tenant)
    tamper(data.draw, log, row)
    report = log.check(tenant)
    assert not report.ok
    places = range(link.seq, link.seq + 2)
    inserted = log.rows[-1].id if tamper is insert else None
    named = [
        finding
        for finding in report.findings
        if (finding.segment == link.segment and finding.place in places)
        or finding.event_id in (link.event_id, row.id, inserted)
        or (finding.segment == link.segment and f"{link.number!r}" in finding.message)
    ]
    # Where erasing was due, one more is only noticed by counting.
    assert named or by_count, report.findings


def forge(checkpoint, **changes):
    """Changed, with a hash that fits; only the signature can't be had."""
    changed = replace(checkpoint, **changes)
    return replace(changed, hash=hash_of(changed))


def with_head(checkpoint, **changes):
    segment, head = next(iter(checkpoint.heads.items()))
    return {**checkpoint.heads, segment: head._replace(**changes)}


CHECKPOINT_TAMPERING = {
    "sealed_at": lambda one: replace(one, sealed_at=one.sealed_at + 1),
    "sealed_at, with its hash": lambda one: forge(one, sealed_at=one.sealed_at + 1),
    "a head's hash": lambda one: replace(one, heads=with_head(one, hash=bytes(32))),
    "a head's place": lambda one: replace(one, heads=with_head(one, seq=1)),
    "a head's place, with its hash": lambda one: forge(one, heads=with_head(one, seq=1)),
    "no heads": lambda one: replace(one, heads={}),
    "no heads, with its hash": lambda one: forge(one, heads={}),
    "heads of another shape": lambda one: replace(one, heads={"aa": (1, 2)}),
    "number": lambda one: replace(one, number=one.number + 40),
    "number, with its hash": lambda one: forge(one, number=one.number + 40),
    "previous": lambda one: replace(one, previous=b"\1" * 32),
    "previous, with its hash": lambda one: forge(one, previous=b"\1" * 32),
    "hash": lambda one: replace(one, hash=b"\1" * 32),
    "key": lambda one: replace(one, key_id="0" * 16),
    "no key": lambda one: replace(one, key_id=""),
    "signature": lambda one: replace(one, signature=bytes(64)),
    "no signature": lambda one: replace(one, signature=b""),
    "tenant": lambda one: forge(one, tenant="zeta"),
}


@pytest.mark.parametrize("what", CHECKPOINT_TAMPERING)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_whatever_is_changed_of_a_checkpoint_is_found_and_named(what, index):
    log = a_log(seals=(2, 4, 6), tenants=("acme",))
    there = log.checkpoints[index]
    log.checkpoints[index] = CHECKPOINT_TAMPERING[what](there)
    verifier = RecordVerifier("acme", sorted(log.checkpoints, key=lambda one: one.number), RING)
    verifier.feed((row.link, row.columns) for row in log.of("acme"))
    report = verifier.report()
    assert not report.ok
    assert {there.number, log.checkpoints[index].number} & {
        finding.checkpoint for finding in report.findings
    }


def test_a_checkpoint_that_is_missing_in_between_is_found():
    log = a_log(seals=(2, 4, 6), tenants=("acme",))
    del log.checkpoints[1]
    (finding,) = log.check("acme").findings
    assert (finding.kind, finding.checkpoint) == (FindingKind.CHECKPOINT_MISSING, 2)
    assert finding.message == "checkpoint 2 is missing"


def test_two_checkpoints_that_changed_places_are_found():
    log = a_log(seals=(2, 4, 6), tenants=("acme",))
    one, other, _ = log.checkpoints
    log.checkpoints[:2] = [replace(other, number=1), replace(one, number=2)]
    named = {finding.checkpoint for finding in log.check("acme").findings}
    assert {1, 2} <= named


def test_a_checkpoint_of_ones_own_is_found():
    log = a_log(tenants=("acme",))
    stranger = KeyRing([key()]).signer("audit")
    log.checkpoints.append(
        make_checkpoint("acme", log.heads("acme"), log.checkpoints[-1], 1.0, stranger)
    )
    (finding,) = log.check("acme").findings
    assert (finding.kind, finding.checkpoint) == (FindingKind.UNKNOWN_KEY, 3)
    assert stranger.key_id in finding.message


def test_the_last_checkpoint_is_missed_only_by_who_has_its_receipt():
    log = a_log(tenants=("acme",))
    before = log.check("acme")
    receipts = {one.number: one.hash for one in log.checkpoints}
    log.checkpoints.pop()
    silent = log.check("acme")
    assert silent.ok
    assert silent.unsealed > before.unsealed
    (finding,) = log.check("acme", receipts=receipts).findings
    assert finding.message == "checkpoint 2 is missing, of which there is a receipt"


def test_another_checkpoint_than_the_one_of_the_receipt_is_found():
    log = a_log(tenants=("acme",))
    (finding,) = log.check("acme", receipts={1: bytes(32)}).findings
    assert (finding.kind, finding.checkpoint) == (FindingKind.CHECKPOINT, 1)


# --- whole histories ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(1, 7))
def test_a_chain_that_was_written_anew_is_not_the_sealed_one(place):
    log = a_log(tenants=("acme",))
    rewrite(log, "bb", place)
    (finding,) = log.check("acme").findings
    sealed, since, number = (3, 0, 1) if place <= 3 else (6, 3, 2)
    assert (finding.kind, finding.segment, finding.place) == (FindingKind.REWRITTEN, "bb", sealed)
    assert finding.checkpoint == number
    assert (
        finding.message == f"is another than checkpoint {number} sealed; look behind place {since}"
    )


def rewrite(log, segment, place):
    """Another story from some place on, chained as it should be."""
    rows = [row for row in log.of("acme") if row.link.segment == segment]
    head = rows[place - 2].link.head if place > 1 else GENESIS
    for row in rows[place - 1 :]:
        columns = (*row.columns[:10], "another", *row.columns[11:])
        row.columns = columns
        row.link = extend("acme", segment, head, columns, row.link.number, os.urandom(16))
        head = row.link.head


@pytest.mark.parametrize("left", [1, 3, 5])
def test_a_cut_tail_is_found(left):
    log = a_log(tenants=("acme",))
    log.rows = [row for row in log.rows if row.link.segment == "aa" or row.link.seq <= left]
    finding = log.check("acme").findings[0]
    assert (finding.kind, finding.segment, finding.place) == (FindingKind.MISSING, "bb", left + 1)
    assert "missing at the end, up to where checkpoint 2 sealed" in finding.message


def test_a_dropped_segment_is_found():
    log = a_log(tenants=("acme",))
    log.rows = [row for row in log.rows if row.link.segment == "aa"]
    (finding,) = log.check("acme").findings
    assert (finding.segment, finding.place) == ("bb", 1)
    assert finding.message == "all of it is missing; checkpoint 2 sealed it up to place 6"


def test_a_single_change_is_a_single_finding():
    for change in (
        lambda row: row.become(hash=bytes(32)),
        lambda row: row.become(digest=bytes(32), salt=None),
        lambda row: row.become(seq=77),
    ):
        log = a_log(seals=(), tenants=("acme",), segments=("aa",))
        row = log.rows[4]
        row.columns = None if row.link.salt is None else row.columns
        change(row)
        found = [one for one in log.check("acme").findings if one.kind is not FindingKind.ERASED]
        assert {finding.place for finding in found} <= {5, 77}
        assert len({finding.event_id for finding in found}) == 1


def test_many_findings_are_counted_and_the_first_are_listed():
    log = a_log(events=70, seals=(70,), tenants=("acme",))
    for row in log.rows:
        row.columns = (*row.columns[:10], "another", *row.columns[11:])
    report = log.check("acme")
    assert (len(report.findings), report.found) == (MAX_FINDINGS, 140)


# --- what can't be found, and is said -------------------------------------------------------------


def test_who_writes_the_unsealed_tail_anew_is_not_found_but_it_is_called_unsealed():
    log = a_log(tenants=("acme",))
    rewrite(log, "bb", 8)
    report = log.check("acme")
    assert report.ok
    assert report.unsealed == 6


def test_a_change_in_the_unsealed_tail_that_does_not_chain_anew_is_found():
    log = a_log(tenants=("acme",))
    row = next(row for row in log.rows if row.link.seq == 8)
    row.columns = (*row.columns[:10], "another", *row.columns[11:])
    (finding,) = log.check("acme").findings
    assert (finding.kind, finding.event_id) == (FindingKind.CHANGED, row.id)


# --- erasing --------------------------------------------------------------------------------------


def test_erasures_on_sealed_and_on_unsealed_record_are_told_apart():
    log = a_log(tenants=("acme",), segments=("aa",))
    log.erase("acme", "aa", 2)
    assert log.check("acme").erased_unsealed == 2
    log.seal("acme")
    log.erase("acme", "aa", 3)
    report = log.check("acme")
    assert (report.ok, report.erased, report.erased_unsealed) == (True, 5, 3)


def test_more_erased_than_on_record_is_found_even_where_erasing_was_due():
    log = a_log(tenants=("acme",), segments=("aa",))
    log.erase("acme", "aa", 2)
    log.tell("acme", "aa")
    log.erase("acme", "aa", 9)
    first = next(row for row in log.rows if row.columns)
    assert first.columns[0] == "audit.erased"
    erase(None, log, first)
    (finding,) = log.check("acme").findings
    assert finding.kind == FindingKind.ERASED


def test_an_erasure_without_a_record_names_the_event():
    log = a_log(tenants=("acme",), segments=("aa",))
    log.erase("acme", "aa", 2)
    erase(None, log, log.rows[4])
    (finding,) = log.check("acme").findings
    assert (finding.kind, finding.event_id) == (FindingKind.ERASED, log.rows[4].id)
    assert finding.message == "was erased without a record of it"


# --- keys -----------------------------------------------------------------------------------------


def test_without_keys_nothing_counts_as_sealed_and_the_reader_is_told():
    log = a_log(tenants=("acme",))
    report = log.check("acme", ring=KeyRing())
    (finding,) = report.findings
    assert (finding.kind, report.sealed) == (FindingKind.UNKNOWN_KEY, 0)
    assert finding.message.startswith("checkpoints 1 to 2 were signed with the key ")


def test_without_keys_a_change_is_still_found():
    log = a_log(tenants=("acme",))
    rewrite(log, "bb", 2)
    kinds = {finding.kind for finding in log.check("acme", ring=KeyRing()).findings}
    assert kinds == {FindingKind.UNKNOWN_KEY, FindingKind.REWRITTEN}


def test_an_older_key_still_verifies_after_a_newer_one_signs():
    log = a_log(tenants=("acme",))
    ring = KeyRing([*RING.keys, key("audit-2")])
    assert ring.signer("audit").key_id != SIGNER.key_id
    log.checkpoints.append(
        make_checkpoint("acme", log.heads("acme"), log.checkpoints[-1], 1.0, ring.signer("audit"))
    )
    report = log.check("acme", ring=ring)
    assert (report.ok, report.unsealed) == (True, 0)


# --- while others write ---------------------------------------------------------------------------


def test_what_comes_during_the_check_is_left_for_the_next_one():
    log = a_log(tenants=("acme",))
    heads = log.heads("acme")
    log.tell("acme", "bb")
    late = log.rows[-1]
    log.tell("acme", "bb")
    log.tell("acme", "new")
    log.rows.remove(late)  # its commit was not seen when its page was read
    assert not log.check("acme").ok
    report = log.check("acme", limits=heads)
    assert (report.ok, report.events) == (True, 18)


def test_a_segment_of_old_that_nobody_knew_is_no_latecomer():
    log = a_log(tenants=("acme",))
    log.now += LATE_MICROS + 1_000_000
    log.tell("acme", "aa")
    heads = log.heads("acme")
    forged = extend("acme", "zz", Head(0, 3, bytes(32)), ("x",), BEGAN + 5, os.urandom(16))
    log.rows.append(Row("acme", forged, ("x",)))
    report = log.check("acme", limits=heads)
    assert [finding.segment for finding in report.findings] == ["zz"]


def test_an_erasure_during_the_check_is_no_finding():
    log = a_log(tenants=("acme",), segments=("aa",))
    heads = log.heads("acme")
    log.erase("acme", "aa", 2)
    assert log.check("acme", limits=heads).ok


def test_limits_that_lie_do_not_hide_what_is_sealed():
    log = a_log(tenants=("acme",))
    rewrite(log, "bb", 4)
    lied = {"aa": log.heads("acme")["aa"], "bb": Head(1, 1, bytes(32))}
    assert not log.check("acme", limits=lied).ok
    assert not log.check("acme", limits={}).ok
