"""The user's `storage_options`, as fsspec's file systems call them, for `obstore`; None where one
has no counterpart.

An option that is not known here is never left out: the file system of fsspec, which knows all of its options,
is asked instead.
"""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ObstoreConfig", "obstore_config"]

# Options that say how fsspec itself reads ahead, caches and lists: they change no byte.
_OF_FSSPEC = frozenset(
    {
        "asynchronous",
        "block_size",
        "blocksize",
        "cache_options",
        "cache_regions",
        "cache_timeout",
        "check_connection",
        "consistency",
        "default_block_size",
        "default_cache_type",
        "default_fill_cache",
        "listings_expiry_time",
        "max_concurrency",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
_AWS_STATIC = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
_AWS_PLAIN = {"region", "output", "cli_pager", "s3"}  # a profile's: they are no credentials

# fsspec's names -> those of the client, of the options and of their `client_kwargs`
_S3_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "requester_pays": "request_payer",
}
_S3_CLIENT_NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region_name": "region",
    "endpoint_url": "endpoint",
}
_AZURE_NAMES = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "endpoint": "endpoint",
}
_AZURE_CONNECTION_NAMES = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_token",
    "blobendpoint": "endpoint",
}

# Headers that its client does not send along where a server sends it to another host.
_STAYS = {"authorization", "cookie", "proxy-authorization"}


class ObstoreConfig(NamedTuple):
    """Arguments of a store.

    Attributes:
        kind: Name of the class in `obstore.store`.
        place: The bucket, container, or the address of the host.
        config: Keywords of the class.
        client: Its `client_options`.
    """

    kind: str
    place: str
    config: dict[str, Any]
    client: dict[str, Any]


class _NoCounterpartError(Exception):
    pass


def obstore_config(scheme: str, place: str, options: Mapping[str, Any]) -> ObstoreConfig | None:
    """The arguments of the store of a bucket or host.

    Args:
        scheme: Scheme of the path: "s3", ...
        place: What follows: a bucket, a container (perhaps with its account), a host.
        options: The user's.
    """
    translate = _TRANSLATORS.get(scheme)
    left = {
        name: value
        for name, value in options.items()
        if value is not None and name not in _OF_FSSPEC
    }
    try:
        config = None if translate is None else translate(place, left)
    except _NoCounterpartError:
        return None
    return None if left else config


def _s3(bucket: str, left: dict[str, Any]) -> ObstoreConfig:
    config = _take(left, _S3_NAMES)
    inner = _mapping(left, "client_kwargs")
    config |= _take(inner, _S3_CLIENT_NAMES)
    config |= _take(left, {"endpoint_url": "endpoint"})
    if inner:
        raise _NoCounterpartError
    profile = left.pop("profile", None)
    if not config.get("skip_signature") and "access_key_id" not in config:
        config = _aws_profile(profile) | config
    if "endpoint" not in config:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config |= {"endpoint": endpoint} if endpoint else {}
    if "." in bucket:  # no certificate is good for such a host
        config.setdefault("virtual_hosted_style_request", False)
    if "endpoint" in config:
        config.setdefault(
            "region",
            os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        )
    return ObstoreConfig("S3Store", bucket, config, _plain_http(config.get("endpoint")))


def _aws_profile(profile: str | None) -> dict[str, Any]:
    """Keys and region of the user's files, where they contain such: an empty dict where the
    environment says them.
    """
    name = profile or os.environ.get("AWS_PROFILE")
    if name is None and any(map(os.environ.get, _AWS_VARIABLES)):
        return {}
    found: dict[str, str] = {}
    for variable, usual, prefix in (
        ("AWS_CONFIG_FILE", "config", "profile "),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", ""),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.environ.get(variable) or Path.home() / ".aws" / usual)
        except (configparser.Error, OSError, UnicodeDecodeError, RuntimeError):
            raise _NoCounterpartError from None
        wanted = name or "default"
        for section in (
            wanted if wanted == "default" else f"{prefix}{wanted}",
            wanted if not prefix else "",
        ):
            found |= dict(parser[section]) if section and parser.has_section(section) else {}
    if (profile and not found) or not found.keys() <= _AWS_STATIC | _AWS_PLAIN or "s3" in found:
        raise _NoCounterpartError  # a role, single sign-on, a program that is asked
    return {
        name.removeprefix("aws_"): found[name] for name in (*_AWS_STATIC, "region") if name in found
    }


def _gcs(bucket: str, left: dict[str, Any]) -> ObstoreConfig:
    config = _take(left, {"endpoint_url": "base_url"})
    project = left.pop("project", None)  # who is asked about lists of buckets
    left.pop("access", None)
    payer = left.pop("requester_pays", None)
    if payer is True:
        payer = project or True
    if payer is True or not isinstance(payer, (str, bool, type(None))):
        raise _NoCounterpartError
    token = left.pop("token", None)
    if token == "anon":
        config["skip_signature"] = True
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and token.endswith(".json"):
        config["application_credentials"] = token
    elif token not in (None, "google_default"):
        raise _NoCounterpartError
    # which gcsfs asks without a token
    if "base_url" not in config and os.environ.get("STORAGE_EMULATOR_HOST"):
        raise _NoCounterpartError
    client = _plain_http(config.get("base_url"))
    if payer:
        client["default_headers"] = {"x-goog-user-project": payer}
    return ObstoreConfig("GCSStore", bucket, config, client)


def _azure(place: str, left: dict[str, Any]) -> ObstoreConfig:
    container, _, host = place.partition("@")  # abfss://container@account.dfs.core.windows.net
    if host:
        left.setdefault("account_name", host.partition(".")[0])
    connection = left.pop("connection_string", None)
    if connection is not None:
        left |= _connection(connection)
    config = _take(left, _AZURE_NAMES)
    if left.get("anon") is True and not config.keys() & {"account_key", "sas_key", "client_id"}:
        config["skip_signature"] = True
    left.pop("anon", None)
    return ObstoreConfig("AzureStore", container, config, _plain_http(config.get("endpoint")))


def _connection(text: object) -> dict[str, str]:
    """The options of a connection string: ``AccountName=...;AccountKey=...``."""
    found: dict[str, str] = {}
    for part in str(text).split(";"):
        name, _, value = part.partition("=")
        name = name.strip().lower()
        if name in _AZURE_CONNECTION_NAMES:
            found[_AZURE_CONNECTION_NAMES[name]] = value
        elif (name and name not in ("defaultendpointsprotocol", "endpointsuffix")) or (
            name == "endpointsuffix" and value != "core.windows.net"
        ):
            raise _NoCounterpartError
    return found


def _http(address: str, left: dict[str, Any]) -> ObstoreConfig:
    headers = _mapping(left, "headers")
    inner = _mapping(left, "client_kwargs")
    headers |= _mapping(inner, "headers")
    if inner:
        raise _NoCounterpartError
    is_plain = all(
        name.lower() in _STAYS and isinstance(value, str) for name, value in headers.items()
    )
    if left.pop("encoded", False) or not is_plain:
        raise _NoCounterpartError
    client = _plain_http(address)
    return ObstoreConfig(
        "HTTPStore", address, {}, {**client, "default_headers": headers} if headers else client
    )


_TRANSLATORS: dict[str, Callable[[str, dict[str, Any]], ObstoreConfig]] = {
    "s3": _s3,
    "s3a": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "az": _azure,
    "abfs": _azure,
    "abfss": _azure,
    "http": _http,
    "https": _http,
}


def _take(left: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Some of the options, taken out, by their other names."""
    found = {names[name]: left.pop(name) for name in [*left] if name in names}
    if not all(isinstance(value, (str, bool)) for value in found.values()):
        raise _NoCounterpartError
    return found


def _mapping(left: dict[str, Any], name: str) -> dict[str, Any]:
    inner = left.pop(name, None)
    if inner is not None and not isinstance(inner, Mapping):
        raise _NoCounterpartError
    return {key: value for key, value in (inner or {}).items() if value is not None}


def _plain_http(address: str | None) -> dict[str, Any]:
    return {"allow_http": True} if address is not None and address.startswith("http://") else {}
