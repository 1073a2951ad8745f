"""A Perfetto file read back with the package's own messages: tracks by path, slices, marks and flows, nesting checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    track: str
    name: str
    begin: int
    end: int
    depth: int
    categories: list[str]
    flows: list[int]
    arguments: dict[str, Any]
    colour: str


@dataclass
class View:
    tracks: list[str] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)

    def on(self, track: str) -> list[Slice]:
        """Slices of one track."""
        return [item for item in self.slices if item.track == track]


def view(data: bytes) -> View:
    """Read a file as its viewer does: packets by time, ties in the order of the file; every slice is closed, none is crossed."""
    trace = Trace()
    trace.ParseFromString(data)
    found, names, parents = View(), {}, {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in names, "each track is declared once"
            names[track.uuid], parents[track.uuid] = track.name, track.parent_uuid
    paths = {uuid: "/".join(filter(None, [names.get(parents[uuid], ""), name])) for uuid, name in names.items()}
    found.tracks = list(paths.values())
    open_on: dict[int, list[Slice]] = {uuid: [] for uuid in names}
    for packet in sorted((packet for packet in trace.packet if packet.HasField("track_event")), key=lambda packet: packet.timestamp):
        event = packet.track_event
        stack = open_on[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end = packet.timestamp
            continue
        made = Slice(
            paths[event.track_uuid],
            event.name,
            packet.timestamp,
            packet.timestamp,
            len(stack),
            list(event.categories),
            list(event.flow_ids),
            {item.name: _value(item) for item in event.debug_annotations},
            event.correlation_id_str,
        )
        if event.type == TrackEvent.TYPE_INSTANT:
            found.instants.append(made)
        else:
            stack.append(made)
            found.slices.append(made)
    assert not any(open_on.values()), "a slice was never closed"
    return found


def _value(annotation: Any) -> Any:
    if annotation.dict_entries:
        return {item.name: _value(item) for item in annotation.dict_entries}
    return annotation.int_value if annotation.HasField("int_value") else annotation.string_value
