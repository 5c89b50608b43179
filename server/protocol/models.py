"""Lists of models: what upstreams list, as one list of ours (contract api.md 1)."""

from collections.abc import Iterable

from server.protocol import raw


def listed(body: bytes, owner: str) -> list[bytes]:
    """The models in an upstream's list, each as ours; raises raw.Malformed where it is none."""
    data = raw.Object(body).get("data")
    if data is None:
        raise raw.Malformed("it is not a list of models")
    models = (raw.Object(model) for model in raw.elements(data) if model.startswith(b"{"))
    return [named(name, owner, model.get("created")) for model in models if (name := model.string("id"))]


def named(name: str, owner: str, created: bytes | None = None) -> bytes:
    """A model of this name; `owner` is the name of its upstream. The official clients want a time: 0 for none."""
    is_time = created is not None and created.isdigit()
    members = {"id": raw.literal(name), "object": b'"model"', "created": created if created and is_time else b"0"}
    return raw.render({**members, "owned_by": raw.literal(owner)})


def id_of(model: bytes) -> str:
    return raw.Object(model).string("id") or ""


def model_list(models: Iterable[bytes]) -> bytes:
    return raw.render({"object": b'"list"', "data": raw.array(list(models))})
