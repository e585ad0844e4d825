"""Secrets stay secret, in errors too."""

from __future__ import annotations

import pytest

from streamserve.settings import parse_settings
from tests.settings.digits import changed, refused

SECURE = changed(
    'bootstrap_servers = "host:9092"',
    'bootstrap_servers = "host:9092"\nclient = { security_protocol = "SASL_SSL", sasl_mechanism = "PLAIN", '
    'sasl_username = "me", sasl_password = "hunter2" }',
)


def test_passwords_are_not_in_what_settings_show() -> None:
    settings = parse_settings(SECURE, "x")
    assert settings.broker.client.sasl_password is not None
    assert settings.broker.client.sasl_password.get_secret_value() == "hunter2"
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('sasl_password = "hunter2"', 'sasl_pasword = "hunter2"'),
        ('sasl_password = "hunter2"', 'sasl_password = ["hunter2"]'),
        ('sasl_username = "me"', 'sasl_username = ["hunter2"]'),
        ('"SASL_SSL"', '"hunter2"'),
        ('"host:9092"', '"me:hunter2@host:9092"'),
        (SECURE[SECURE.index("client = {") : SECURE.index("}") + 1], 'client = "hunter2"'),
        ('sasl_password = "hunter2"', 'sasl_password = "hunter2'),
    ],
)
def test_passwords_are_not_in_errors(old: str, new: str) -> None:
    text = changed(old, new, SECURE)
    assert not [words for words in refused(text) if "hunter2" in words]


def test_passwords_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_BROKER__CLIENT__SASL_PASSWORD", "12345")
    password = parse_settings(changed(', sasl_password = "hunter2"', "", SECURE), "x").broker.client.sasl_password
    assert password is not None
    assert password.get_secret_value() == "12345"


def test_sasl_without_its_parts_is_refused() -> None:
    told = refused(changed('sasl_mechanism = "PLAIN", sasl_username = "me", ', "", SECURE))
    assert [words.split(": ")[1].split(" is missing")[0] for words in told] == [
        "broker.client.sasl_mechanism",
        "broker.client.sasl_username",
    ]


@pytest.mark.parametrize(("old", "new"), [('"PLAIN"', '"NTLM"'), ('sasl_mechanism = "PLAIN", ', "")])
def test_without_a_mechanism_that_is_one_they_are_named(old: str, new: str) -> None:
    told = [words for words in refused(changed(old, new, SECURE)) if "broker.client.sasl_mechanism" in words]
    mechanisms = '"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"'
    assert [words.split("; allowed: ")[1] for words in told] == [mechanisms]


def test_a_bearer_of_tokens_needs_their_function_and_no_password() -> None:
    bearer = 'sasl_mechanism = "OAUTHBEARER"'
    text = changed('sasl_mechanism = "PLAIN", sasl_username = "me", sasl_password = "hunter2"', bearer, SECURE)
    (told,) = refused(text)
    assert "broker.client.sasl_token_function is missing" in told
    function = changed(bearer, f'{bearer}, sasl_token_function = "ours.tokens:fresh"', text)
    assert parse_settings(function, "x").broker.client.sasl_token_function == "ours.tokens:fresh"
    (told,) = refused(changed("ours.tokens:fresh", "eyJhbGciOi", function))
    assert "allowed: `package.module:function`" in told
    assert "eyJ" not in told
