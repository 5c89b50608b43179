"""Settings: four places, one order; a name or a value that cannot be used is told by its name, never by its value."""

from pathlib import Path

import pytest

from server.config import Config, ConfigError, default_data_dir, load

HOME = {"HOME": "/home/ada"}


def toml(folder: Path, text: str) -> dict[str, str]:
    path = folder / "rejoinder.toml"
    path.write_text(text, encoding="utf-8")
    return {**HOME, "REJOINDER_CONFIG": str(path)}


def refusal(arguments: dict[str, object], environment: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(arguments, {**HOME, **environment})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_defaults_are_those_of_the_design() -> None:
    config = load({}, HOME)

    assert (config.host, config.port, config.log_level) == ("127.0.0.1", 8080, "info")
    assert (config.upstream, config.upstream_api_key, config.database_url) == (None, None, None)
    assert (config.no_migrate, config.pgbouncer, config.pool_size) == (False, False, 8)
    assert (config.on_disconnect, config.encrypted_only) == ("finish", "refuse")
    assert config.body_bytes_max == config.event_bytes_max == config.stream_bytes_max == 67_108_864
    assert config.reply_bytes_max == 268_435_456
    assert config.json_depth_max == 200
    assert (config.connect_timeout_s, config.reply_timeout_s, config.silence_timeout_s) == (5, 600, 600)
    assert (config.first_event_wait_s, config.keep_alive_interval_s, config.detached_run_max_s) == (5, 10, 300)


def test_the_command_line_wins_over_a_variable_over_the_file_over_the_default(tmp_path: Path) -> None:
    environment = toml(tmp_path, 'host = "file"\nport = 1\nlog_level = "debug"\npool_size = 3\n')
    environment |= {"REJOINDER_HOST": "variable", "REJOINDER_PORT": "2"}

    config = load({"host": "option", "port": None}, environment)

    assert config.host == "option"
    assert config.port == 2
    assert (config.log_level, config.pool_size) == ("debug", 3)
    assert config.json_depth_max == 200


def test_the_option_names_the_file_before_the_variable_does(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.toml"
    chosen.write_text("port = 7\n")

    assert load({"config": str(chosen)}, toml(tmp_path, "port = 8\n")).port == 7


def test_an_empty_variable_counts_as_absent() -> None:
    assert load({}, {**HOME, "REJOINDER_PORT": "", "REJOINDER_UPSTREAM": "", "REJOINDER_CONFIG": ""}).port == 8080


def test_every_kind_of_value_comes_through_a_variable() -> None:
    config = load(
        {},
        {
            "REJOINDER_NO_MIGRATE": "true",
            "REJOINDER_PGBOUNCER": "1",
            "REJOINDER_CONNECT_TIMEOUT_S": "0.25",
            "REJOINDER_BODY_BYTES_MAX": "1000",
            "REJOINDER_ON_DISCONNECT": "cancel",
            "REJOINDER_DATA_DIR": "/srv/data of ours",
        },
    )

    assert (config.no_migrate, config.pgbouncer) == (True, True)
    assert (config.connect_timeout_s, config.body_bytes_max, config.on_disconnect) == (0.25, 1000, "cancel")
    assert config.data_dir == Path("/srv/data of ours")


@pytest.mark.parametrize(
    ("arguments", "environment", "wrong", "right"),
    [
        ({}, {"REJOINDER_UPSTREM": "x"}, "REJOINDER_UPSTREM ", "REJOINDER_UPSTREAM"),
        ({}, {"REJOINDER_CONFG": "x"}, "REJOINDER_CONFG ", "REJOINDER_CONFIG"),
        ({}, {"REJOINDER_DATABASE_URL_FIL": "x"}, "REJOINDER_DATABASE_URL_FIL ", "REJOINDER_DATABASE_URL_FILE"),
        ({"log_lvl": "info"}, {}, "--log-lvl ", "--log-level"),
    ],
)
def test_a_misspelt_name_is_told_with_the_closest_real_one(
    arguments: dict[str, object], environment: dict[str, str], wrong: str, right: str
) -> None:
    text = refusal(arguments, environment)

    assert text.startswith(wrong)
    assert text.endswith(f"the closest is {right}")


def test_a_misspelt_key_of_the_file_is_told_with_the_closest_real_one(tmp_path: Path) -> None:
    text = refusal({}, toml(tmp_path, "keepalive_interval_s = 3\n"))

    assert text == "keepalive_interval_s is not a setting; the closest is keep_alive_interval_s"


def test_a_name_like_no_other_is_told_without_a_guess(tmp_path: Path) -> None:
    assert refusal({}, toml(tmp_path, "bogus = 3\n")) == "bogus is not a setting"


def test_upstreams_in_a_variable_are_told_where_they_belong() -> None:
    text = refusal({}, {"REJOINDER_UPSTREAMS": "http://h/v1"})

    assert text == "REJOINDER_UPSTREAMS is not read; [[upstreams]] are tables of the TOML file"


def test_a_misspelt_name_in_the_file_is_told_even_if_options_say_all(tmp_path: Path) -> None:
    assert refusal({"port": "1"}, toml(tmp_path, "prot = 3\n")).startswith("prot is not a setting")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("BODY_BYTES_MAX", "0"),
        ("BODY_BYTES_MAX", "64MB"),
        ("POOL_SIZE", "0"),
        ("JSON_DEPTH_MAX", "501"),
        ("REPLY_TIMEOUT_S", "0"),
        ("REPLY_TIMEOUT_S", "nan"),
        ("REPLY_TIMEOUT_S", "inf"),
        ("NO_MIGRATE", "perhaps"),
        ("LOG_LEVEL", "loud"),
        ("ON_DISCONNECT", "Finish"),
        ("ENCRYPTED_ONLY", "keep"),
        ("UPSTREAM", "host:8000/v1"),
        ("UPSTREAM", "ftp://host/v1"),
        ("UPSTREAM", "http:///v1"),
        ("UPSTREAM", "http://host:80000/v1"),
        ("UPSTREAM", "http://host/v1?key=hunter2"),
        ("UPSTREAM", "http://host/v1#top"),
        ("UPSTREAM", "http://host /v1"),
        ("DATABASE_URL", "mysql://ada:hunter2@host/db"),
        ("DATABASE_URL", "hunter2"),
        ("DATABASE_URL", "postgresql://ada:hunter2@host:port/db"),
        ("UPSTREAM_API_KEY", "hunter2\r\nX-Other: 1"),
        ("UPSTREAM_API_KEY", "hünter2"),
    ],
)
def test_a_value_that_cannot_be_used_names_the_setting_and_not_the_value(name: str, value: str) -> None:
    text = refusal({}, {f"REJOINDER_{name}": value})

    assert text.startswith(f"REJOINDER_{name} ")
    assert "hunter2" not in text


def test_the_file_has_types_of_its_own(tmp_path: Path) -> None:
    assert load({}, toml(tmp_path, "connect_timeout_s = 2\nno_migrate = true\n")).connect_timeout_s == 2
    assert refusal({}, toml(tmp_path, 'port = "80"\n')) == "port cannot be used: Expected `int`, got `str`"
    assert refusal({}, toml(tmp_path, "pool_size = true\n")).startswith("pool_size cannot be used")
    assert refusal({}, toml(tmp_path, "[upstream]\nurl = 1\n")).startswith("upstream cannot be used")


def test_a_choice_lists_what_can_be_chosen() -> None:
    assert refusal({"log_level": "loud"}, {}).endswith("Expected one of debug, info, warning, error")


def test_a_file_of_settings_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert (
        refusal({"config": missing}, {})
        == f"the configuration file {missing} cannot be read: No such file or directory"
    )
    assert "is not TOML" in refusal({}, toml(tmp_path, "port: 80\n"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'host = "\xe9"\n')
    assert "is not UTF-8" in refusal({"config": str(latin)}, {})


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_the_upstream_loses_the_slash_at_its_end(slashes: str) -> None:
    assert load({"upstream": f"http://host:8000/v1{slashes}"}, HOME).upstream == "http://host:8000/v1"


def test_other_names_of_the_scheme_of_postgres_are_told_the_right_one() -> None:
    for scheme in ("postgres", "postgresql+asyncpg"):
        text = refusal({"database_url": f"{scheme}://ada:hunter2@host/db"}, {})
        assert text == f"--database-url must begin with postgresql://, not with {scheme}://"


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    key, url = tmp_path / "key", tmp_path / "url"
    key.write_text("hunter2\n")
    url.write_text("postgresql://ada:pw@host/db\r\n")

    config = load({}, toml(tmp_path, f'database_url_file = "{url}"\n') | {"REJOINDER_UPSTREAM_API_KEY_FILE": str(key)})

    assert config.upstream_api_key == "hunter2"
    assert config.database_url == "postgresql://ada:pw@host/db"


def test_a_higher_place_wins_over_the_file_of_a_secret(tmp_path: Path) -> None:
    environment = toml(tmp_path, f'upstream_api_key_file = "{tmp_path}/none"\n')

    assert load({"upstream_api_key": "hunter2"}, environment).upstream_api_key == "hunter2"


def test_a_secret_given_twice_in_one_place_is_refused() -> None:
    text = refusal({}, {"REJOINDER_DATABASE_URL": "postgresql://h/d", "REJOINDER_DATABASE_URL_FILE": "/run/url"})

    assert "REJOINDER_DATABASE_URL and REJOINDER_DATABASE_URL_FILE" in text


def test_the_file_of_a_secret_that_cannot_be_read_is_told_by_the_setting(tmp_path: Path) -> None:
    text = refusal({}, {"REJOINDER_UPSTREAM_API_KEY_FILE": str(tmp_path / "none")})

    assert text == "the file that REJOINDER_UPSTREAM_API_KEY_FILE names cannot be read: No such file or directory"


def test_no_secret_is_ever_shown() -> None:
    config = Config(
        upstream="http://ada:hunter2@host/v1",
        upstream_api_key="hunter2",
        database_url="postgresql://ada:hunter2@host/db",
    )

    for shown in (repr(config), str(config), f"{config}", repr([config]), str(config.__rich_repr__())):
        assert "hunter2" not in shown
        assert "http://host/v1" in shown


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_not_ours() -> None:
    config = load(
        {},
        {
            **HOME,
            "REJOINDER_PORT": "tcp://10.0.0.7:8080",
            "REJOINDER_SERVICE_HOST": "10.0.0.7",
            "REJOINDER_SERVICE_PORT_HTTP": "8080",
            "REJOINDER_PORT_8080_TCP_ADDR": "10.0.0.7",
            "REJOINDER_POSTGRES_PORT": "tcp://10.0.0.8:5432",
        },
    )

    assert config.port == 8080


@pytest.mark.parametrize(
    ("user_id", "environment", "expected"),
    [
        (0, {"HOME": "/root", "XDG_DATA_HOME": "/root/data"}, "/var/lib/rejoinder"),
        (1000, {"HOME": "/home/ada"}, "/home/ada/.local/share/rejoinder"),
        (1000, {"HOME": "/home/ada", "XDG_DATA_HOME": "/data"}, "/data/rejoinder"),
        (1000, {"HOME": "/home/ada", "XDG_DATA_HOME": "data"}, "/home/ada/.local/share/rejoinder"),
    ],
)
def test_data_lives_where_the_user_keeps_data(
    monkeypatch: pytest.MonkeyPatch, user_id: int, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user_id)

    assert default_data_dir(environment) == Path(expected)
    assert load({}, environment).data_dir == Path(expected)


def test_a_relative_data_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert load({"data_dir": "state"}, HOME).data_dir == tmp_path / "state"


def test_an_upstream_has_one_kind_of_credentials() -> None:
    with pytest.raises(ConfigError) as refused:
        load({"upstream": "http://user:secret-word@host/v1", "upstream_api_key": "key"}, {})
    assert "upstream_api_key" in str(refused.value)
    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize("upstream", ["http://a..b/v1", f"http://{'a' * 64}.example/v1"])
def test_a_host_that_no_resolver_takes_is_refused(upstream: str) -> None:
    with pytest.raises(ConfigError):
        load({"upstream": upstream}, {})
