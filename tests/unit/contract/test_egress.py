"""Egress: what is let through and what is not, by name and by address."""

import json
import pickle
import subprocess
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.egress import Egress, parse_entry
from counterseal.contract.model import Contract, EgressPolicy
from counterseal.errors import EgressError

NONE, ALLOWLISTED, PRIVATE, UNRESTRICTED = EgressPolicy
PUBLIC = "93.184.216.34"
PUBLIC_6 = "2606:2800:220:1::1"
METADATA = ["169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"]


def allowlisted(*entries):
    return Egress(ALLOWLISTED, entries)


def url_is_let_through(egress, host, port=443, scheme="https"):
    try:
        egress.check_url(scheme, host, port)
    except EgressError:
        return False
    return True


def address_is_let_through(egress, address, port=443, host="api.example.org"):
    try:
        egress.check_address(host, port, address)
    except EgressError:
        return False
    return True


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("api.example.org", "api.example.org"),
        ("api.example.org", "API.Example.ORG"),
        ("API.example.org", "api.example.org"),
        ("api.example.org", "api.example.org."),
        ("api.example.org.", "api.example.org"),
        ("*.example.org", "api.example.org"),
        ("*.example.org", "a.b.example.org"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("xn--mnchen-3ya.example", "münchen.example"),
        ("*.MÜNCHEN.example", "www.xn--mnchen-3ya.example"),
        ("a_b.example.org", "a_b.example.org"),
        ("localhost", "localhost"),
    ],
)
def test_a_listed_name_is_let_through_however_it_is_written(entry, host):
    assert url_is_let_through(allowlisted(entry), host)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("api.example.org", "example.org"),
        ("api.example.org", "evil.org"),
        ("api.example.org", "x.api.example.org"),
        ("api.example.org", "api.example.org.evil.org"),
        ("api.example.org", "apiXexample.org"),
        ("example.org", "notexample.org"),
        ("*.example.org", "example.org"),
        ("*.example.org", "badexample.org"),
        ("*.example.org", ".example.org"),
        ("*.example.org", "a..example.org"),
        ("*.example.org", "evil.org#.example.org"),
        ("*.example.org", "evil.org/.example.org"),
        ("*.example.org", "evil.org%00.example.org"),
        ("*.example.org", "evil.org\n.example.org"),
        ("api.example.org", "api.example.org.."),
        ("api.example.org", ""),
        ("api.example.org", "a" * 300),
        ("example.org", "еxample.org"),  # noqa: RUF001 - the first letter is Cyrillic
    ],
)
def test_any_other_name_is_refused(entry, host):
    assert not url_is_let_through(allowlisted(entry), host)


@pytest.mark.parametrize(
    ("entry", "ports"),
    [
        ("api.example.org", {80, 443}),
        ("api.example.org:8443", {8443}),
        ("api.example.org:443", {443}),
        ("*.example.org:8443", {8443}),
    ],
)
def test_a_port_other_than_the_usual_two_must_be_written(entry, ports):
    let_through = {
        port
        for port in (-1, 0, 22, 80, 443, 8443, 65536)
        if url_is_let_through(allowlisted(entry), "api.example.org", port)
    }
    assert let_through == ports


@pytest.mark.parametrize("scheme", ["ftp", "file", "gopher", "ws", "wss", "unix", "", "HTTPS "])
@pytest.mark.parametrize("policy", [ALLOWLISTED, UNRESTRICTED])
def test_only_http_is_spoken(scheme, policy):
    egress = Egress(policy, ("api.example.org",))
    assert not url_is_let_through(egress, "api.example.org", scheme=scheme)


def test_no_egress_means_none_whatever_is_listed():
    egress = Egress(NONE, ("api.example.org", "127.0.0.1"))
    with pytest.raises(EgressError, match=r"api\.example\.org:443.*egress_policy none"):
        egress.check_url("https", "api.example.org", 443)
    for address in (PUBLIC, "127.0.0.1", "10.0.0.1"):
        assert not url_is_let_through(egress, address)
        assert not address_is_let_through(egress, address)


# --- addresses ------------------------------------------------------------------------------------

NOT_PUBLIC = {
    "private": [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "fd12:3456::1",
        "fc00::1",
    ],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "fec0::1", "::7f00:1", "4000::1"],
    "shared": ["100.64.0.1", "100.127.255.255"],
    "benchmarking": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "tunnel": ["2002:7f00:1::", "2002:808:808::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "metadata": [*METADATA, "fd00:ec2::254%1", "64:ff9b::a9fe:a9fe", "::ffff:169.254.169.254"],
}
EMBEDDED = ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"]
ALL_NOT_PUBLIC = [*(each for some in NOT_PUBLIC.values() for each in some), *EMBEDDED]
POLICIES = [allowlisted("api.example.org"), Egress(UNRESTRICTED)]


@pytest.mark.parametrize("egress", POLICIES, ids=["allowlisted", "unrestricted"])
@pytest.mark.parametrize("address", ALL_NOT_PUBLIC)
def test_what_is_not_public_is_refused_unless_it_is_declared(egress, address):
    assert not address_is_let_through(egress, address)


@pytest.mark.parametrize("egress", POLICIES, ids=["allowlisted", "unrestricted"])
@pytest.mark.parametrize(
    "address",
    [
        PUBLIC,
        PUBLIC_6,
        "8.8.8.8",
        "172.32.0.1",
        "100.128.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_what_is_public_is_let_through(egress, address):
    assert address_is_let_through(egress, address)


@pytest.mark.parametrize(("kind", "addresses"), NOT_PUBLIC.items())
def test_the_refusal_says_what_the_address_is(kind, addresses):
    for address in addresses:
        with pytest.raises(EgressError, match=rf"api\.example\.org:443: .* is a {kind}"):
            allowlisted("api.example.org").check_address("api.example.org", 443, address)


@pytest.mark.parametrize(
    ("entry", "address", "port"),
    [
        ("127.0.0.1", "127.0.0.1", 80),
        ("127.0.0.1:9000", "127.0.0.1", 9000),
        ("127.0.0.1:9000", "::ffff:127.0.0.1", 9000),
        ("::1", "::1", 443),
        ("[::1]", "::1", 443),
        ("[::1]:9000", "::1", 9000),
        ("10.1.0.0/16", "10.1.2.3", 443),
        ("10.1.0.0/16", "64:ff9b::a01:203", 443),
        ("10.1.0.0/16:8080", "10.1.2.3", 8080),
        ("fd00::/8", "fd12::1", 443),
        ("[fd00::/8]:8080", "fd12::1", 8080),
        ("fe80::/10", "fe80::1%eth0", 443),
        ("100.64.0.0/10", "100.64.0.1", 443),
        ("0.0.0.0", "0.0.0.0", 80),
    ],
)
@pytest.mark.parametrize("policy", [ALLOWLISTED, UNRESTRICTED, PRIVATE])
def test_what_is_declared_is_let_through(policy, entry, address, port):
    egress = Egress(policy, (entry,))
    assert address_is_let_through(egress, address, port)
    assert url_is_let_through(egress, address, port)


@pytest.mark.parametrize(
    ("entry", "address", "port"),
    [
        ("127.0.0.1", "127.0.0.2", 443),
        ("127.0.0.1", "127.0.0.1", 9000),
        ("127.0.0.1:9000", "127.0.0.1", 443),
        ("127.0.0.1", "::1", 443),
        ("10.1.0.0/16", "10.2.0.1", 443),
        ("10.1.0.0/16", "10.1.0.1", 22),
        ("10.0.0.1", "2002:a00:1::", 443),
        ("2002::/16", "2002:a00:1::", 443),
        ("::/0", "127.0.0.1", 443),
        ("0.0.0.0/0", "::1", 443),
    ],
)
@pytest.mark.parametrize("policy", [ALLOWLISTED, UNRESTRICTED])
def test_a_declaration_covers_no_other_address_and_no_other_port(policy, entry, address, port):
    egress = Egress(policy, (entry, "api.example.org"))
    assert not address_is_let_through(egress, address, port)
    assert not url_is_let_through(egress, address, port)


@pytest.mark.parametrize("address", METADATA)
@pytest.mark.parametrize("policy", [ALLOWLISTED, UNRESTRICTED, PRIVATE])
def test_a_metadata_address_is_reached_only_when_it_is_written_itself(policy, address):
    whole = "::/0" if ":" in address else "0.0.0.0/0"
    near = ip_network(address).supernet()
    for wide in (whole, str(near)):
        assert not address_is_let_through(Egress(policy, (wide,)), address)
        assert not url_is_let_through(Egress(policy, (wide,)), address)
    for exact in (address, str(ip_network(address))):
        assert address_is_let_through(Egress(policy, (exact,)), address)


@pytest.mark.parametrize(
    "name", ["metadata.google.internal", "METADATA.google.internal.", "metadata"]
)
def test_a_metadata_name_is_reached_only_when_it_is_written_itself(name):
    for egress in (
        allowlisted("*.google.internal", "*.internal"),
        Egress(UNRESTRICTED),
        Egress(UNRESTRICTED, ("*.google.internal", "169.254.169.254")),
        Egress(PRIVATE),
    ):
        assert not url_is_let_through(egress, name, 80)
    written = Egress(UNRESTRICTED, (name,))
    assert url_is_let_through(written, name, 80)
    assert not address_is_let_through(written, "169.254.169.254", 80, name), "nor its address"


ODD = {
    "127.0.0.1": ["0x7f.1", "2130706433", "127.1", "0177.0.0.1", "0x7f000001", "127.0.0.1.",
                  "[::ffff:127.0.0.1]", "::ffff:7f00:1"],
    "0.0.0.0": ["0", "0x0", "0.0"],
    "::": ["[::]", "0:0:0:0:0:0:0:0"],
    "169.254.169.254": ["2852039166", "0xa9fea9fe", "169.254.43518", "[::ffff:a9fe:a9fe]"],
}  # fmt: skip


@pytest.mark.parametrize(("real", "odd"), [(real, odd) for real in ODD for odd in ODD[real]])
def test_an_odd_spelling_is_judged_as_what_it_would_reach(real, odd):
    for egress in (allowlisted("api.example.org", "*.example.org"), Egress(UNRESTRICTED)):
        assert not url_is_let_through(egress, odd)
    assert url_is_let_through(allowlisted(real), odd)


def test_a_public_address_as_a_host_must_be_listed_like_a_name():
    assert not url_is_let_through(allowlisted("api.example.org"), PUBLIC)
    assert url_is_let_through(allowlisted("93.184.0.0/16"), PUBLIC)
    assert url_is_let_through(Egress(UNRESTRICTED), PUBLIC, 8443)


@pytest.mark.parametrize("answer", ["", "nowhere", "127.1", "api.example.org", "1.2.3.4:80"])
def test_an_answer_that_is_no_address_is_refused(answer):
    for egress in POLICIES:
        assert not address_is_let_through(egress, answer)


# --- the other policies ---------------------------------------------------------------------------


def test_unrestricted_reaches_any_public_name_on_any_port():
    egress = Egress(UNRESTRICTED, ("api.example.org",))
    assert url_is_let_through(egress, "other.example.net", 8443)
    assert address_is_let_through(egress, PUBLIC, 8443)
    assert not url_is_let_through(egress, "10.0.0.1")


def test_private_network_only_reaches_what_is_private_and_nothing_public():
    egress = Egress(PRIVATE)
    assert url_is_let_through(egress, "db.internal", 8080)
    for address in ("10.0.0.1", "192.168.1.1", "172.16.0.1", "fd12::1"):
        assert address_is_let_through(egress, address, 8080)
        assert url_is_let_through(egress, address, 8080)
    for address in (PUBLIC, PUBLIC_6, "127.0.0.1", "::1", "169.254.0.1", "100.64.0.1", *METADATA):
        assert not address_is_let_through(egress, address)
        assert not url_is_let_through(egress, address)


def test_private_network_only_reaches_nothing_public_even_if_it_is_listed():
    egress = Egress(PRIVATE, ("api.example.org", "93.184.0.0/16", "0.0.0.0/0"))
    assert not url_is_let_through(egress, PUBLIC)
    with pytest.raises(EgressError, match="is public"):
        egress.check_address("api.example.org", 443, PUBLIC)


def test_private_network_only_keeps_to_the_hosts_that_it_lists():
    egress = Egress(PRIVATE, ("db.internal:8080", "127.0.0.1"))
    assert url_is_let_through(egress, "db.internal", 8080)
    assert not url_is_let_through(egress, "db.internal")
    assert not url_is_let_through(egress, "other.internal")
    assert not url_is_let_through(egress, "10.0.0.1")
    assert url_is_let_through(egress, "127.0.0.1")


# --- rules ----------------------------------------------------------------------------------------

ADDRESSES = (
    st.ip_addresses(v=4) | st.ip_addresses(v=6) | st.sampled_from(ALL_NOT_PUBLIC).map(ip_address)
)
SOME = st.sampled_from(["api.example.org", "*.example.org", "other.org:8443", "93.184.216.34"])


@given(ADDRESSES, st.lists(SOME).map(tuple), st.sampled_from([ALLOWLISTED, UNRESTRICTED]))
def test_no_address_that_is_not_global_is_let_through_undeclared(address, entries, policy):
    egress = Egress(policy, entries)
    if address_is_let_through(egress, str(address)):
        mapped = getattr(address, "ipv4_mapped", None) or address
        assert mapped.is_global
        assert not mapped.is_multicast
        assert str(mapped) not in METADATA


@given(ADDRESSES)
def test_only_private_addresses_are_let_through_as_private(address):
    if address_is_let_through(Egress(PRIVATE), str(address)):
        assert (getattr(address, "ipv4_mapped", None) or address).is_private or (
            address in ip_network("64:ff9b::/96")
        )


@given(ADDRESSES, st.sampled_from([ALLOWLISTED, UNRESTRICTED]))
def test_every_way_to_hide_an_ipv4_address_is_seen_through(address, policy):
    egress = Egress(policy, ("api.example.org",))
    if isinstance(address, IPv6Address) or address_is_let_through(egress, str(address)):
        return
    number = int(address)
    hidden = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64_FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
        IPv6Address((0x2001_0000 << 96) | (0x0808_0808 << 64) | (number ^ 0xFFFF_FFFF)),
    ]
    for each in hidden:
        assert not address_is_let_through(egress, str(each))
        assert not url_is_let_through(egress, str(each))
    assert not url_is_let_through(egress, str(number))
    assert not url_is_let_through(egress, hex(number))


@given(st.ip_addresses(v=4, network="10.0.0.0/8"), st.integers(8, 32))
def test_a_network_declares_its_own_addresses_and_no_others(address, length):
    network = ip_network((IPv4Address("10.1.2.3"), length), strict=False)
    assert address_is_let_through(allowlisted(str(network)), str(address)) is (address in network)


@given(st.text(max_size=40), st.integers(-1, 70000))
def test_no_host_whatever_it_looks_like_passes_a_list_that_it_is_not_on(host, port):
    assert not url_is_let_through(allowlisted("api.example.org:7"), host, port)


@given(st.text(max_size=40))
def test_an_entry_declares_something_or_is_refused_by_its_name(text):
    try:
        entry = parse_entry(text)
    except ValueError as error:
        refusal = str(error)
    else:
        assert entry.name or entry.network
        return
    assert refusal.startswith(f"egress {text!r}: ")


# --- entries and records --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ("https://api.example.org", "write the host only"),
        ("api.example.org/", "write the host only"),
        ("api.example.org/v1", "network"),
        ("", "not a host name"),
        ("*", "a star is allowed at the front only"),
        ("*.", "not a host name"),
        ("api.*.org", "a star is allowed at the front only"),
        ("*api.example.org", "a star is allowed at the front only"),
        ("api.example.org:", "not a port"),
        ("api.example.org:0", "not a port"),
        ("api.example.org:65536", "not a port"),
        ("api.example.org:http", "not a port"),
        ("api example.org", "not a host name"),
        ("1.2.3.4.5", "not a host name"),
        ("127.1", "write the address in full: 127.0.0.1"),
        ("2130706433", "write the address in full: 127.0.0.1"),
        ("10.1.2.3/16", "host bits"),
        ("10.0.0.0/33", "network"),
        ("::ffff:10.0.0.1", "write the IPv4 address"),
        ("::ffff:10.0.0.0/104", "write the IPv4 address"),
    ],
)
def test_a_bad_entry_is_named_with_the_way_to_write_it(entry, advice):
    with pytest.raises(ValueError, match="an entry is a host") as raised:
        Egress(ALLOWLISTED, ("api.example.org", entry))
    assert f"egress {entry!r}: " in str(raised.value)
    assert advice in str(raised.value)


def test_the_refusal_says_what_to_write():
    egress = allowlisted("api.example.org")
    for host, port, written in (
        ("evil.org", 443, "'evil.org'"),
        ("api.example.org", 8443, "'api.example.org:8443'"),
        ("127.0.0.1", 9000, "'127.0.0.1:9000'"),
        ("[::1]", 9000, "'[::1]:9000'"),
        ("0x7f.1", 80, "'127.0.0.1'"),
    ):
        with pytest.raises(EgressError) as raised:
            egress.check_url("http", host, port)
        assert "which lists api.example.org" in str(raised.value)
        assert f"add {written}" in str(raised.value)
        told = Egress(ALLOWLISTED, (written.strip("'"),))
        told.check_url("http", host, port)


def test_an_egress_is_the_contracts_and_travels_as_json():
    contract = Contract.model_validate(
        {
            "identity": {"name": "look_up"},
            "affordance": {"model_description": "Look.", "input_schema": {"type": "object"}},
            "effect": "retrieve",
            "security": {"egress_policy": "allowlisted_domains"},
            "egress": ["api.example.org", "10.1.0.0/16"],
        }
    )
    egress = Egress.of(contract)
    assert egress == allowlisted("api.example.org", "10.1.0.0/16")
    again = Egress.from_record(json.loads(json.dumps(egress.record())))
    assert again == egress == pickle.loads(pickle.dumps(egress))
    assert hash(again) == hash(egress)
    again.check_address("x", 443, "10.1.0.1")


def test_judging_loads_no_http_library():
    code = "import sys, counterseal.contract.egress as _; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
