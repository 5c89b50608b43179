"""`[[upstreams]]` in the configuration file: what each member means, and which line names what is wrong."""

from pathlib import Path

import pytest

from server.config import Config, ConfigError, load
from server.protocol.profile import CHAT_VLLM, OPENAI, STRICT, STRICT_CHAT, VLLM

URL = 'urls = ["http://h/v1"]\n'


def configured(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load({"config": str(path)}, environment or {})


def entry(*members: str) -> str:
    return "\n".join(["[[upstreams]]", 'name = "gpu"', URL, *members, ""])


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, text)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_whole_entry(tmp_path: Path) -> None:
    text = """
    [[upstreams]]
    name = "gpu"
    urls = ["http://a:8000/v1/", "http://b:8000/v1"]
    dialect = "responses"
    profile = "vllm"
    models = ["tiny", "qwen*"]
    api_key_env = "GPU_KEY"
    default = true
    think_tags = "split"
    """
    [upstream] = configured(tmp_path, text, {"GPU_KEY": "k-123"}).upstreams
    assert (upstream.name, upstream.urls) == ("gpu", ("http://a:8000/v1", "http://b:8000/v1"))
    assert (upstream.profile, upstream.models) == (VLLM, ("tiny", "qwen*"))
    assert (upstream.api_key, upstream.is_default, upstream.think_tags) == ("k-123", True, "split")
    assert "k-123" not in repr(upstream)


def test_the_short_form_is_a_vllm_that_serves_all(tmp_path: Path) -> None:
    [upstream] = load({"upstream": "http://h/v1", "upstream_api_key": "k", "encrypted_only": "omit"}, {}).upstreams
    assert (upstream.name, upstream.urls, upstream.models) == ("default", ("http://h/v1",), ("*",))
    assert (upstream.api_key, upstream.is_default) == ("k", True)
    assert upstream.profile.item_members == VLLM.item_members
    assert upstream.profile.encrypted_only == "omit"


@pytest.mark.parametrize(
    ("member", "profile"),
    [
        ("", STRICT),
        ('dialect = "chat"', STRICT_CHAT),
        ('profile = "openai"', OPENAI),
        ('profile = "chat-vllm"', CHAT_VLLM),
        ('profile = {preset = "vllm"}', VLLM),
    ],
)
def test_the_profile_of_an_entry(tmp_path: Path, member: str, profile: object) -> None:
    [upstream] = configured(tmp_path, entry("default = true", member)).upstreams
    assert upstream.profile == profile


def test_a_table_overrides_members_of_its_preset(tmp_path: Path) -> None:
    text = entry("default = true", 'profile = {preset = "openai", families = ["gpt-5", "o"], encrypted_only = "omit"}')
    profile = configured(tmp_path, text).upstreams[0].profile
    assert (profile.families, profile.encrypted_only) == (("gpt-5", "o"), "omit")
    assert profile.item_members == OPENAI.item_members


def test_the_servers_encrypted_only_holds_for_every_entry_that_says_nothing(tmp_path: Path) -> None:
    text = 'encrypted_only = "omit"\n' + entry("default = true")
    assert configured(tmp_path, text).upstreams[0].profile.encrypted_only == "omit"


def test_a_key_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k-file\n")
    text = entry("default = true", f'api_key_file = "{tmp_path}/key"')
    assert configured(tmp_path, text).upstreams[0].api_key == "k-file"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (entry(), "upstreams[0] serves nothing: give it models, or default = true"),
        (entry("default = true", "urls2 = []"), "upstreams[0] has no member of this name: urls2; the closest is urls"),
        (entry("default = 1"), "upstreams[0].default cannot be used: Expected `bool`, got `int`"),
        (
            entry("default = true", 'think_tags = "cut"'),
            "upstreams[0].think_tags cannot be used: Expected one of keep, split",
        ),
        (
            entry("default = true", 'dialect = "cat"'),
            "upstreams[0].dialect cannot be used: Expected one of responses, chat",
        ),
        (
            entry("default = true", "budget = {foo = 1}"),
            "upstreams[0].budget has no member of this name: foo; it has output_tokens, output_tokens_max, total_",
        ),
        ('[[upstreams]]\nname = "a"\nurls = []\ndefault = true', "upstreams[0].urls must name at least one URL"),
        ('[[upstreams]]\nname = "a"\nurls = ["h"]\ndefault = true', "upstreams[0].urls[0] must be a URL like"),
        ('[[upstreams]]\nname = ""\nurls = ["http://h"]\ndefault = true', "upstreams[0].name must be printable"),
        (entry('models = ["a*b"]'), "upstreams[0].models must be names"),
        (entry("default = true", 'profile = "vlm"'), "upstreams[0].profile must be one of vllm, vllm-harmony, openai"),
        (
            entry("default = true", 'profile = "vllm"', 'dialect = "chat"'),
            "upstreams[0].profile is of the dialect responses, which its upstream must speak",
        ),
        (
            entry("default = true", 'profile = {preset = "vllm", familie = []}'),
            "upstreams[0].profile has no member of this name: familie; the closest is families",
        ),
        (
            entry("default = true", 'profile = {preset = "vllm", reasoning = "all"}'),
            "upstreams[0].profile.reasoning cannot be used: Expected one of plaintext, opaque, none",
        ),
        (entry("default = true", 'api_key = "SECRET x"'), "upstreams[0].api_key must be ASCII text without spaces"),
        (entry("default = true", 'api_key = "k"', 'api_key_env = "E"'), "upstreams[0].api_key and upstreams[0].api_k"),
        (entry("default = true", 'api_key_env = "E"'), "upstreams[0].api_key_env names a variable that is not set"),
        (entry("default = true") * 2, "the name 'gpu' is given to more than one of upstreams"),
        (
            entry('models = ["m"]') + entry('models = ["m"]').replace("gpu", "b"),
            "the model 'm' is given to more than one of upstreams",
        ),
        (
            entry("default = true") + entry("default = true").replace("gpu", "b"),
            "more than one of upstreams is the default",
        ),
        ('upstream = "http://h/v1"\n' + entry("default = true"), "upstream and [[upstreams]] are both given; give one"),
        ("upstreams = []", "upstreams must be tables, each begun by [[upstreams]]"),
        ("upstreams = [1]", "upstreams[0] must be a table, begun by [[upstreams]]"),
        ('pass_through = ["/v1/responses"]', "pass_through must be routes such as /v1/embeddings"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    told = refusal(tmp_path, text)
    assert told.startswith(said)
    assert "SECRET" not in told


def test_routes_to_pass_through(tmp_path: Path) -> None:
    assert configured(tmp_path, 'pass_through = ["/v1/embeddings"]').pass_through == ("/v1/embeddings",)
    given = {"REJOINDER_PASS_THROUGH": "/v1/embeddings, /v1/chat/completions"}
    assert load({}, given).pass_through == ("/v1/embeddings", "/v1/chat/completions")
