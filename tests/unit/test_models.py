"""Lists of models: what an upstream lists becomes ours, and what is no list is refused."""

import json

import pytest

from server.protocol import models, raw


def test_an_upstreams_models_are_listed_under_its_name() -> None:
    body = b'{"object":"list","data":[{"id":"a","created":17,"permission":[]},{"id":"b","created":"x"},{"x":1},7]}'
    assert [json.loads(model) for model in models.listed(body, "gpu")] == [
        {"id": "a", "object": "model", "created": 17, "owned_by": "gpu"},
        {"id": "b", "object": "model", "created": 0, "owned_by": "gpu"},
    ]


@pytest.mark.parametrize("body", [b"[]", b'{"data":{}}', b'{"object":"list"}', b"<html>"])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(raw.Malformed):
        models.listed(body, "gpu")


def test_the_list_of_all() -> None:
    one = models.named("m", "u")
    assert json.loads(models.model_list([one])) == {"object": "list", "data": [json.loads(one)]}
    assert models.id_of(one) == "m"
