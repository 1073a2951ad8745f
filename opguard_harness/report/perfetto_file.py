"""A Perfetto trace, written packet by packet with the package that Perfetto itself ships.

It is an extra of its own (``timeline``): its protobuf runtime is held by many training environments at a version of theirs, and
this package may be installed beside such a training. Nothing here is imported before somebody asks for a timeline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from opguard_core.errors import DependencyMissing
from opguard_harness.report.escape import perfetto

INSTALL = "pip install 'opguard-mcp[timeline]'"
_SEQUENCE = 1  # one writer


class PerfettoFile:
    """Tracks, slices, instants and flows, on their way to bytes. All text is escaped here, once.

    Raises:
        DependencyMissing: The package ``perfetto`` is not installed, or cannot be used.
    """

    def __init__(self) -> None:
        self._protos: Any = _protos()
        self._trace = self._protos.Trace()
        self._made = 0

    def track(self, name: str, *, parent: int = 0, rank: int = 0, text: str = "") -> int:
        """Declare a track.

        Args:
            name: What the viewer calls it.
            parent: Track that it lies in; 0 for none.
            rank: Its place among its siblings.
            text: What it shows, for a reader.

        Returns:
            Its number, the same whenever the same tracks are declared in the same order.
        """
        self._made += 1
        uuid = int.from_bytes(hashlib.sha256(f"{self._made}\0{parent}".encode("ascii")).digest()[:8], "big") >> 1 or 1
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = perfetto(name)
        packet.track_descriptor.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        packet.track_descriptor.sibling_order_rank = rank
        if text:
            packet.track_descriptor.description = perfetto(text)
        if parent:
            packet.track_descriptor.parent_uuid = parent
        return uuid

    def slice(
        self,
        track: int,
        name: str,
        begin_ns: int,
        end_ns: int,
        *,
        categories: Sequence[str] = (),
        colour: str = "",
        flow: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a slice; those of one track are added in order, an outer one before what lies in it.

        Args:
            track: Its track.
            name: Text shown on it.
            begin_ns: When it begins.
            end_ns: When it ends, not before.
            categories: Words of ours to search and filter by.
            colour: Slices of one word have one colour.
            flow: Slices of one number are joined by an arrow.
            arguments: Shown when it is clicked: texts, numbers, and mappings of those.
        """
        event = self._event(track, begin_ns, self._protos.TrackEvent.TYPE_SLICE_BEGIN, name, categories, arguments)
        if colour:
            event.correlation_id_str = colour
        if flow is not None:
            event.flow_ids.append(flow)
        self._event(track, end_ns, self._protos.TrackEvent.TYPE_SLICE_END, "", (), None)

    def instant(
        self, track: int, name: str, at_ns: int, *, categories: Sequence[str] = (), arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Add a mark; arguments as `slice`."""
        self._event(track, at_ns, self._protos.TrackEvent.TYPE_INSTANT, name, categories, arguments)

    def data(self) -> bytes:
        """The whole file; equal calls give equal bytes."""
        found: bytes = self._trace.SerializeToString(deterministic=True)
        return found

    def _packet(self) -> Any:
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _event(self, track: int, at_ns: int, kind: int, name: str, categories: Sequence[str], arguments: Mapping[str, Any] | None) -> Any:
        packet = self._packet()
        packet.timestamp = at_ns
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        if name:
            event.name = perfetto(name)
        event.categories.extend(categories)
        for key, value in (arguments or {}).items():
            _annotate(event.debug_annotations.add(), key, value)
        return event


def _annotate(annotation: Any, name: str, value: Any) -> None:
    """One argument; a mapping nests."""
    annotation.name = perfetto(name, 80)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _annotate(annotation.dict_entries.add(), key, item)
    elif isinstance(value, int) and abs(value) < 1 << 63:
        annotation.int_value = value
    else:
        annotation.string_value = perfetto(str(value), 400)


def _protos() -> Any:
    """The package's message classes."""
    try:
        from google.protobuf.runtime_version import VersionError
    except ImportError as error:
        raise _missing(str(error)) from error
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except (ImportError, VersionError) as error:  # a runtime that is older than the generated code refuses it
        raise _missing(str(error)) from error
    return perfetto_trace_pb2


def _missing(why: str) -> DependencyMissing:
    return DependencyMissing(f"A timeline is written with the package perfetto, which cannot be imported: {why}.", hint=f"Run {INSTALL}.")
