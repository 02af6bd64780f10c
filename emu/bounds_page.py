# ruff: noqa: E501 (the lines of a table)
"""docs/bounds.md from the code: what each can make us hold, with the numbers.

`python -m emu.bounds_page > docs/bounds.md` after a change; a test holds the page against the code.
"""

import importlib
import re
import sys
from dataclasses import fields, is_dataclass
from typing import Any, Final

_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GB": 10**9}
# A reference to a constant of a module of cedos, or to the default of a dataclass's field, and its
# unit.
_NUMBER: Final = re.compile(r"\{([\w.]+):([\w.]+) ?(\w*)\}")

_TEMPLATE: Final = """# What others can make us hold

Generated from the code by `python -m emu.bounds_page`, which a test repeats. [security.md](security.md) says what is promised.

| what | at most | beyond it |
| --- | --- | --- |
| **An invited client of a gateway** | | |
| sessions, those asleep included; paths of each, of all | {proxy.gateway.gateway:GatewaySettings.sessions_per_client}; {session.io.flow:MOST_PATHS}, half of {proxy.gateway.gateway:_SPARE_FILES} or, where that is more, one for each {proxy.gateway.gateway:_PATHS_SHARE} open files | refused; the oldest path closes, refused |
| connections until they are closed, {proxy.streams.carry:LAST_S} s after their session; how many it opens, with associations | {proxy.gateway.gateway:GatewaySettings.most_per_client} of one, {proxy.gateway.gateway:GatewaySettings.most} of all; half of what open files allow, where those are fewer; {proxy.gateway.gateway:OPENS_PER_S} a second, {proxy.gateway.gateway:OPENS_AT_ONCE} at once | 503; the session ends |
| bytes that servers do not read, frames that wait for the client, packets before their association; bytes that its sessions hold and nothing reads | {proxy.streams.unread:MOST_OF_ONE_BYTES MiB} of one, {proxy.streams.unread:MOST_BYTES MiB} of all, half of free memory; {session.protocol.handshake.limits:HandshakeLimits.unread_bytes_per_host MiB} of one | the fullest connection of the user with most breaks, for half of it in frames and packets the largest session ends; the largest session ends |
| a stream's window; frames that wait | {proxy.streams.stream:WINDOW_BYTES KiB}; {proxy.streams.multiplexer:_MOST_WAITING} | the session ends |
| associations; peers and names of each; packets of each that wait for look-ups | {proxy.gateway.packet_relay:MOST_PER_CLIENT} of one, {proxy.gateway.packet_relay:MOST} of all; {proxy.gateway.packet_relay:MOST_PEERS}, {proxy.gateway.packet_relay:MOST_NAMES}, in all {proxy.gateway.packet_relay:MOST_REMEMBERED_OF_CLIENT} of one, {proxy.gateway.packet_relay:MOST_REMEMBERED} of all; {proxy.gateway.packet_relay:MOST_WAITING_BYTES KiB} | 503; the oldest of the user with most is forgotten; dropped |
| questions for names; look-ups of servers; questions about sharing, certificates, paths with receipts | {proxy.gateway.gateway_session:MOST_PER_CLIENT} of {proxy.gateway.gateway_session:MOST}; {proxy.gateway.origin:_MOST_LOOKUPS_EACH}, and no more than are left for others, of {proxy.gateway.origin:_MOST_LOOKUPS}, likewise each user of its part; {apps.sharing.gateway_sharing:_ASKED_PER_S} a second, {apps.sharing.store:MOST_CERTIFICATES} in 30 days, {apps.sharing.gateway_sharing:_MOST_HELPED_EACH} | not answered; they wait; refused |
| addresses of a server's name; attempts beside each connection's first | {proxy.gateway.origin:MOST_ADDRESSES}; {proxy.gateway.origin:MOST_SECOND_ATTEMPTS}, each user as many as are left for others | left out; they wait |
| requests to origins at once | {apps.files.objects.object_fetcher:AT_ONCE}, {apps.files.objects.object_fetcher:AT_ONCE_OF_ORIGIN} of one origin | they wait |
| objects that are open, and on their way; not acknowledged in a session | {apps.files.objects.object_store:MOST_OPEN} each; {apps.files.objects.object_serving:MOST_AHEAD} | refused; it waits |
| the disk for objects; threads that work for it | half of `--cache`, in whole blocks; its objects on the way take half of what others' leave; {apps.files.objects.object_store:THREADS} | used longest ago first out; they wait |
| their number; a URL; the record of one | half of {apps.files.objects.object_store:MOST_OBJECTS}; {apps.files.objects.stored_object:LONGEST_URL KiB}; {apps.files.objects.stored_object:LONGEST_RECORD KiB} | the same; refused; refused |
| **A client of `cedos-serve`** | | |
| sessions; memory while it is away; what it sent and is not read | {session.protocol.handshake.limits:HandshakeLimits.flows_per_host}; {session.protocol.handshake.limits:HandshakeLimits.idle_bytes_per_host MiB}; {session.protocol.handshake.limits:HandshakeLimits.unread_bytes_per_host MiB} | refused; the largest ends |
| open files of a session; uploads at once; threads that list, hash and wait for the disk for an address | {apps.files.serving:OPEN_FILES}; {apps.files.serving:_AT_ONCE}; {apps.files.serving:THREADS_OF_ADDRESS} | it waits; one without a network makes way, else refused; it waits |
| the path of an upload; unfinished uploads of a client | {apps.files.serving:_LONGEST_PATH_BYTES} bytes, {apps.files.serving:_DEEPEST} names; {apps.files.serving:_MOST_UNFINISHED} since the server started | refused; the oldest goes |
| lists of folders that are not taken | {apps.files.serving:MOST_LISTED_BYTES MiB} of all | the oldest session of the address with most ends |
| **A stranger at a listening port** | | |
| handshakes; lines of one kind that others cause in a log; a value in one | {session.protocol.handshake.limits:HandshakeLimits.half_open_per_address} of an address, {session.protocol.handshake.limits:HandshakeLimits.half_open} of all, {session.protocol.handshake.limits:HandshakeLimits.handshake_s} s each; {logs:_AT_ONCE} at once, then one a second; {logs:_LONGEST} letters | the oldest goes; the next one says how many were left out; cut |
| sessions of all hosts; of them without a network; asleep; what all sent and is not read; gaps in what one acknowledges | {session.protocol.handshake.limits:HandshakeLimits.flows}; {session.protocol.handshake.limits:HandshakeLimits.absent}; {session.protocol.handshake.limits:HandshakeLimits.asleep}; {session.protocol.handshake.limits:HandshakeLimits.unread_bytes MiB}; {session.protocol.sender:MOST_GAPS} | refused; the busiest host's oldest ends; awake; the busiest host's largest ends; sent again |
| connections of one address, or of one key where keys are invited, but to a gateway; sessions without a network | {session.sockets.listener:_MOST_OF_ADDRESS}, half of open files with those beside them; a quarter of open files | refused; as above |
| **A web server, or a server of files** | | |
| a head, with those before it; its fields; answers 1xx before it; what frames a body, and for each of its bytes; a URL's host, also a client's; bytes of rules for caches; of a TLS handshake, threads for these | {apps.files.objects.origin_client:LONGEST_HEAD KiB}, {web:_MOST_HEAD_BYTES MiB}; {web:_MOST_FIELDS}; {web:MOST_INFORMATIONAL}; {web:_MOST_FRAMING_BYTES KiB}, {web:_FRAMING_OF_BYTE}; {web:_LONGEST_NAME} letters, {web:_MOST_LETTERS} if not ASCII; {apps.files.objects.http_rules:_MOST_RULES_BYTES}; {tls_client:MOST_BYTES KiB}, 1 of an asker, {tls_client:MOST_THREADS} of all | an error; an error; an error; an error; an error; it is not stored; an error, they wait |
| silence, or less than 16 KiB; where others wait for its slot, less than {apps.files.objects.object_fetcher:_LEAST_BESIDE_OTHERS MiB}; redirects | {web:SILENCE_S} s; the same; {apps.files.objects.object_fetcher:_MOST_REDIRECTS} | given up; it waits behind them; given up |
| a feed of podcasts; what a session keeps of parts and lists beside its windows | {apps.files.podcast_library:_MOST_FEED_BYTES MiB}; {session.protocol.receiver:MOST_EXTRA_BYTES MiB} | an error |
| new episodes and bytes of a feed in a day; days of these that are remembered; rows in the table of transfers | {apps.files.podcast_library:MOST_NEW} or `keep`, {apps.files.podcast_library:MOST_OF_DAY_BYTES GB}; {apps.files.podcast_library:_MOST_DAYS}; {apps.files.podcasts:_MOST_OF_FEED} of {apps.files.podcasts:_MOST_AT_ONCE} | they wait; the oldest is forgotten; they wait |
| a folder; a tree's depth, entries, and folders that wait; failures that are told | {apps.files.messages:MOST_ENTRIES} entries; {commands.console.tree_copy:_DEEPEST}, {commands.console.tree_copy:_MOST_ENTRIES}, {commands.console.tree_copy:_MOST_WAITING}; {commands.sessions.get:_MOST_FAILURES} | an error; they are counted |
| **A user of this host** | | |
| connections to the proxy; through a gateway; those that a user's programs have left; time for a request | {proxy.local.local_proxy:_MOST}, of these {proxy.local.local_proxy:_MOST_SILENT} without a request, or with more than {proxy.local.local_proxy:_SMALL_BYTES KiB} of one that waits; {proxy.local.gateway_link:MOST_OF_USER} of one; {proxy.local.local_proxy:MOST_LEFT}, {proxy.local.local_proxy:LEFT_S} s each; {proxy.local.local_proxy:_HEAD_S} s | of who has most: the oldest silent one goes, or the newest; 503; the oldest goes; it goes |
| origins that refused; bytes that programs do not read; the same of direct connections | {proxy.local.local_proxy:_MOST_REFUSED}; {proxy.local.gateway_link:MOST_OF_ONE_BYTES MiB} for each gateway; {proxy.splice:MOST_KEPT_BYTES MiB}, then 64 KiB a way | who has most loses the oldest; who holds most loses the fullest connection; its sender waits |
| addresses and names that programs were told under rules; names for rules of prefixes, for `cedos status`; look-ups for these rules | {commands.console.user_rules:_MOST_NAMES}; {commands.console.user_rules:_MOST_NAMES}, {proxy.local.name_stub:_MOST_KNOWN} of all; {commands.console.user_rules:_MOST_LOOKUPS} of one at once | who has most loses the oldest; the same; no such rule applies |
| redirected sockets with datagrams; destinations of each; of all sockets of a user | {proxy.local.redirected_datagrams:MOST_SOCKETS} of all; {proxy.local.program_packets:MOST_DESTINATIONS}; {proxy.local.redirection:MOST_PLACES} among the redirected users | who has most loses some; the oldest goes; the same |
| questions to the resolver; of these at the gateway; connections by TCP | {proxy.local.name_stub:_MOST_OF_USER} of one, {proxy.local.name_stub:_MOST} of all; {proxy.local.name_stub:MOST_FAR_OF_USER} of one; {proxy.local.name_stub:_MOST_CONNECTIONS_OF_USER} of one, {proxy.local.name_stub:_MOST_CONNECTIONS} of all | not answered; they wait; closed |
| connections to the control socket; one without a request; a request | {api.server:MOST}; {api.server:IDLE_S} s; {api.server:MAX_BODY_BYTES KiB} | the idle ones close; 413 |
| requests that wait; of them for the disk; for changes | {api.server:MAX_REQUESTS_OF_USER} of one, {api.server:MAX_REQUESTS} of all but root; {api.server:MAX_DISK_OF_USER} of one; {api.server:MAX_FOLLOWERS_OF_USER} of one, {api.server:MAX_FOLLOWERS} of all but root | 503; 503; each 2 s they ask |
| programs that report connections; connections | {daemon.told_connections:_MOST_OF_A_USER} of one, {daemon.told_connections:_MOST_PROGRAMS} of all; {daemon.told_connections:_MOST_CONNECTIONS} of all | not believed |
| hints; transfers with deadlines; files of earlier logs beside which one begins | {controller.decisions.hints:MOST_OF_A_USER} of one, {controller.decisions.hints:MOST} of all; {selector.deadlines.transfer_table:MOST_OF_USER} of one, {selector.deadlines.transfer_table:MOST} of all; {daemon.event_log:MOST_FILES} | refused |
| rules; places and exceptions in an interface's filter of them; of the kernel's that could not be withdrawn; budgets that commands set | {controller.decisions.user_rules:MOST}; {host.steer.kernel.rule_filter:MOST}; {controller.outbox:MOST_LED}; {daemon.budgets.host_budgets:MOST} | refused; `status` says that rules hold by routes alone; forgotten; refused |
| TCP connections that are followed | {kernel.sock_diag:MOST_OF_USER} of one, {kernel.sock_diag:MOST} of all | as without the daemon, by the routes that it has set |
| first packets that are watched; connections that are rescued; openings that wait to be handled | {controller.decisions.rescue:_MOST_WATCHED_OF_ONE} of one, {controller.decisions.rescue:_MOST_WATCHED} of all; {controller.decisions.rescue:_MOST_RESCUED_OF_ONE} of one, {controller.decisions.rescue:_MOST_RESCUED} of all; {host.monitor.flow_monitor:_MOST_WAITING} of all | not rescued; nor recorded |
| **A neighbour, by packets** | | |
| look-ups that are watched; asked again at once; bytes of a session that are taken on the way, and sent again at once | {controller.lookups:_MOST_LOOKUPS}; {controller.lookups:_MOST_REPEATED}; {session.io.connect_attempts:_IN_VAIN_BYTES MiB} of a network | the oldest goes; it stays as it is; a pause before each connection |
| names with addresses under rules; addresses of each; of a rule, of all rules; names that lead to others; aliases of a rule's names, those in an answer, in one with services; records, labels and addresses that are read of an answer; records and labels around it, their names; search domains that are remembered; a network's own addresses in the rules for one destination | {controller.decisions.named_addresses:_MOST_NAMES}; {controller.decisions.named_addresses:MOST_OF_A_NAME}; {controller.rule:MOST_ADDRESSES}, {controller.decisions.user_rules:MOST_OF_ALL}; {controller.decisions.named_addresses:_MOST_LED}; {controller.decisions.user_rules:MOST_ALIASES}, {host.monitor.dns_message:_MOST_LED}, {host.monitor.dns_message:_MOST_SERVERS}; {host.monitor.dns_message:_MOST_STEPS}; {host.monitor.dns_message:_MOST_BESIDE}, {host.monitor.dns_message:_MOST_OWNERS}; {host.monitor.resolvers:_MOST_DOMAINS}; {host.steer.routing_plan:_MOST_SOURCES} | the oldest goes; an answer with more counts as unreadable; it is dropped; the nearest ones count as one |
| questions while answers are held; changes of addresses under rules by look-ups; answers that wait to be read; that are held, what was read of the message of each; of them claims; names of these looked up each second, at once; questions that are remembered by UDP, and by TCP; streams of TCP with these, what is kept of each | {host.steer.kernel.filter_rules:MOST_ASKED_PER_S} a second of a user; {controller.held_answers:CHANGES_AT_ONCE} at once, then {controller.held_answers:CHANGES_PER_S} a second of a user; {host.lookups.answers:_MOST_OF_USER} of a user, {kernel.packet_queue:_MOST_WAITING} of all; {controller.held_answers:_MOST_HELD}, 64 KiB; {controller.held_answers:_MOST_CLAIMS_OF_ONE} of a user, {controller.held_answers:_MOST_CLAIMS} of all; {controller.held_answers:_PER_S}, {controller.held_answers:_BURST} of a user, {controller.held_answers:_PER_S_OF_ALL}, {controller.held_answers:_BURST_OF_ALL} of all; {host.lookups.answers:_MOST_QUESTIONS} each, who has most loses the oldest; {host.monitor.dns_message:_MOST_STREAMS} of a user, {host.monitor.dns_message:_KEPT_BYTES KiB} | not sent; the answer is dropped; dropped; the oldest goes |
| announced routers of an interface that are looked at; changes of networks; checks of a network for a portal; networks that have gone and stay barred | {kernel.policy_routing:MOST_ROUTERS}; {host.monitor.links:_AT_ONCE} at once, then {host.monitor.links:_PER_S} a second; {controller.networks.portals:_AT_ONCE} at once, then one each {controller.networks.portals:LOGGING_IN_EVERY_S} s; {selector.budgets.hard:MOST_GONE} | the worse ones are left out; they wait; they wait; an earlier one is barred when it comes |
| Invites that a helper verifies, answers each second; Joins that wait for a Confirm; connections that it forwards | {apps.sharing.protocol.helper:INVITES_VERIFIED_PER_S}, {apps.sharing.protocol.helper:INVITES_ANSWERED_PER_S}; {apps.sharing.protocol.helper:_MOST_JOINED}; {host.steer.kernel.forwarding_filter:MOST_CONNECTIONS_OF_ONE} of one, {host.steer.kernel.forwarding_filter:MOST_CONNECTIONS} of all | dropped; the oldest goes; dropped |
| helpers that offer, Joins and Confirms that are verified; clients that are avoided; hosts whose last time is known; contracts at a gateway | {apps.sharing.protocol.requestor:_MOST_OFFERS}, 2 a second of an address, 50 of all; {apps.sharing.protocol.certificates:AvoidedClients._MOST}; {apps.sharing.protocol.signing:_SIGNERS}; {apps.sharing.protocol.accounting:_MOST_CONTRACTS_EACH} of one, {apps.sharing.protocol.accounting:_MOST_CONTRACTS} of all | refused, dropped; the oldest goes; refused; refused |
"""


def page() -> str:
    """Return the whole page. ValueError: a bound is no whole number of its unit."""
    return _NUMBER.sub(_shown, _TEMPLATE)


def number(module: str, path: str) -> Any:
    """Return the number of a bound, as the code has it."""
    found: Any = importlib.import_module(f"cedos.{module}")
    for name in path.split("."):
        if isinstance(found, type) and is_dataclass(found):
            (found,) = (each.default for each in fields(found) if each.name == name)
        else:
            found = getattr(found, name)
    return found


def _shown(match: re.Match[str]) -> str:
    value, size = number(match[1], match[2]), _UNITS[match[3]]
    if value % size:
        raise ValueError(f"{match[0]}: {value} is no whole number")
    return f"{value // size:,.0f} {match[3]}".rstrip()


if __name__ == "__main__":
    sys.stdout.write(page())
