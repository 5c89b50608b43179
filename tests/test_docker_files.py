"""What the container files name is what the package has: paths, commands, options, settings and ports.

No container engine is needed for that. Where one answers, the image is built too.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from server.api.system import check_health
from server.config import Config, load

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Step(NamedTuple):
    """One instruction of the Dockerfile and the stage it stands in: the name behind AS, or the stage's number."""

    stage: str
    instruction: str
    text: str


def dockerfile() -> list[Step]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    steps: list[Step] = []
    stage = ""
    for number, line in enumerate(filter(None, "\n".join(lines).replace("\\\n", " ").splitlines())):
        instruction, text = line.split(None, 1)
        if instruction == "FROM":
            stage = text.split(" AS ")[1] if " AS " in text else str(number)
        steps.append(Step(stage, instruction, text.strip()))
    return steps


STEPS = dockerfile()
LAST_STAGE = [step for step in STEPS if step.stage == STEPS[-1].stage]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]


def texts(instruction: str, steps: list[Step]) -> list[str]:
    return [step.text for step in steps if step.instruction == instruction]


def only(instruction: str) -> str:
    """The text of an instruction that the last stage has once."""
    [text] = texts(instruction, LAST_STAGE)
    return text


def image_environment() -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts("ENV", LAST_STAGE))


def settings(*environments: dict[str, str]) -> Config:
    """What the server would read, which refuses a variable that is none of its settings."""
    merged = {name: value for environment in environments for name, value in environment.items()}
    return load({}, {name: value for name, value in merged.items() if name.startswith("REJOINDER_")})


def ours() -> dict[str, dict[str, Any]]:
    """The services that run the image of this repository."""
    return {name: service for name, service in SERVICES.items() if "build" in service}


def commands() -> dict[str, list[str]]:
    """Every command line that the files give to our console script, by where it stands."""
    lines = {name: service["command"] for name, service in ours().items() if "command" in service}
    return {"Dockerfile": json.loads(only("CMD")), **lines}


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def installed(script: str) -> Path:
    return Path(sys.executable).parent / script


def option(line: list[str], name: str) -> str:
    return line[line.index(name) + 1]


def test_the_dockerfile_copies_what_exists_and_what_the_context_holds() -> None:
    copied = [
        source
        for text in texts("COPY", STEPS)
        if not text.startswith("--from=")
        for source in text.split()[:-1]  # the last one is where to
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "the context is everything that the ignore file does not name"
    assert sorted(line[1:] for line in ignored if line.startswith("!")) == sorted(copied)


def test_everything_that_the_package_is_built_from_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], PROJECT["readme"], "pyproject.toml", "uv.lock"}
    assert needed <= {word for text in texts("COPY", STEPS) for word in text.split()}


def test_the_second_stage_takes_what_the_first_one_made() -> None:
    [made] = [text.split("=", 1)[1] for text in texts("ENV", STEPS) if text.startswith("UV_PROJECT_ENVIRONMENT=")]
    [(stage, source, target)] = re.findall(r"--from=(\S+) (\S+) (\S+)", "\n".join(texts("COPY", LAST_STAGE)))
    assert stage in {step.stage for step in STEPS} - {LAST_STAGE[0].stage}
    # An environment names its own folder in its scripts, so it must not move.
    assert (source, target) == (made, made)
    assert image_environment()["PATH"].startswith(f"{made}/bin:")


def test_both_stages_have_one_python_that_the_package_accepts() -> None:
    images = {text.split()[0] for text in texts("FROM", STEPS)}
    assert images == {f"python:{PROJECT['requires-python'].removeprefix('>=')}-slim"}


def test_the_steps_name_options_that_uv_has() -> None:
    lines = [line for line in texts("RUN", STEPS) if line.startswith("uv ")]
    assert lines
    for line in lines:
        _, command, *options = line.split()
        shown = output_of(installed("uv"), command, "--help")
        assert [name for name in options if name.startswith("-") and name not in shown] == []


def test_the_image_gets_the_uv_of_the_lock() -> None:
    [program] = re.findall(r"sed -n '(.*)' uv\.lock", "\n".join(texts("RUN", STEPS)))
    found = output_of("sed", "-n", program, ROOT / "uv.lock")
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [found.strip()] == [package["version"] for package in locked if package["name"] == "uv"]


def test_the_image_runs_as_a_user_that_it_made_and_keeps_its_data_in_a_volume() -> None:
    user = only("USER")
    [made] = [line for line in texts("RUN", LAST_STAGE) if line.startswith("useradd ")]
    assert user == made.split()[-1]
    assert user not in {"root", "0"}
    assert str(settings(image_environment()).data_dir) == only("VOLUME")
    assert f"--create-home --home-dir {only('VOLUME')} " in made, "the user could not write to its volume"


def test_the_image_listens_where_it_says_and_is_asked_there_for_its_health() -> None:
    config = settings(image_environment())
    assert config.host == "0.0.0.0"
    assert only("EXPOSE") == str(config.port)
    [url] = re.findall(r"http://[^']+", only("HEALTHCHECK"))
    assert urlsplit(url).port == config.port
    assert urlsplit(url).path in check_health.paths


def test_the_check_of_health_is_python_that_can_run() -> None:
    program = json.loads(only("HEALTHCHECK").split(" CMD ")[1])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "HEALTHCHECK", "exec")


def test_the_entry_point_is_the_console_script() -> None:
    assert json.loads(only("ENTRYPOINT")) == list(PROJECT["scripts"])


def test_commands_and_their_options_exist() -> None:
    assert {line[0] for line in commands().values()} == {"serve", "mock", "keys"}
    missing = defaultdict(list)
    for place, (command, *options) in commands().items():
        words = [command, *(itertools.takewhile(str.isalpha, options) if command == "keys" else ())]
        shown = output_of(installed("rejoinder"), *words, "--help")
        missing[place] += [name for name in options if name.startswith("--") and not re.search(rf"{name}\b", shown)]
    assert {place: names for place, names in missing.items() if names} == {}


def test_compose_builds_from_files_that_exist() -> None:
    assert ours()
    for service in ours().values():
        context = (COMPOSE.parent / service["build"]["context"]).resolve()
        assert context == ROOT
        assert context / service["build"]["dockerfile"] == DOCKERFILE


def test_compose_joins_the_server_to_its_neighbours() -> None:
    server, postgres, upstream = SERVICES["server"], SERVICES["postgres"], SERVICES["upstream"]
    config = settings(image_environment(), server["environment"])
    assert config.upstream is not None
    assert config.database_url is not None
    asked, stored = urlsplit(config.upstream), urlsplit(config.database_url)
    assert (asked.hostname, str(asked.port)) == ("upstream", option(upstream["command"], "--port"))
    assert (stored.hostname, stored.port) == ("postgres", 5432)
    # The image runs what lies there when it makes its data, as the superuser that the server must not be.
    mounts = [volume.split(":") for volume in postgres["volumes"]]
    [script] = [COMPOSE.parent / source for source, target, *_ in mounts if "/docker-entrypoint-initdb.d/" in target]
    statements = script.read_text()
    assert f"create role {stored.username} login password '{stored.password}';" in statements
    assert f"create database {stored.path.removeprefix('/')} owner {stored.username} " in statements


def test_compose_publishes_the_port_of_the_image_to_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"server": [f"127.0.0.1:8080:{only('EXPOSE')}"]}


def test_compose_waits_for_services_that_can_say_they_are_healthy() -> None:
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            if wait == {"condition": "service_completed_successfully"}:
                assert SERVICES[name]["command"][0] == "keys", "all others go on"
            else:
                assert wait == {"condition": "service_healthy"}
                assert "test" in SERVICES[name]["healthcheck"]


def test_compose_makes_the_first_key_where_the_server_looks_for_it() -> None:
    server, maker = SERVICES["server"], SERVICES["first-key"]
    assert maker["environment"]["REJOINDER_DATABASE_URL"] == server["environment"]["REJOINDER_DATABASE_URL"]
    assert not settings(image_environment(), server["environment"]).may_be_open
    # At every other start there is one already.
    assert "--if-first" in maker["command"]
    assert "first-key" in server["depends_on"]


def test_compose_declares_its_volumes() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {source for source in mounted if not source.startswith(".")}
    assert named == set(yaml.safe_load(COMPOSE.read_text())["volumes"])


def container_engine() -> str | None:
    docker = shutil.which("docker")
    if docker is None:
        return None
    answer = subprocess.run([docker, "info"], capture_output=True, check=False, timeout=60)
    return docker if answer.returncode == 0 else None


def test_the_image_builds_and_runs() -> None:
    docker = container_engine()
    if docker is None:
        pytest.skip("NO CONTAINER ENGINE ANSWERS: the image was not built, its files were only read")
    subprocess.run([docker, "build", "--file", DOCKERFILE, "--tag", "rejoinder:test", ROOT], check=True, timeout=900)
    assert "serve" in output_of(docker, "run", "--rm", "rejoinder:test", "--help")
