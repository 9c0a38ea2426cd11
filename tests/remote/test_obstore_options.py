"""The user's options for obstore: what has a counterpart, and that all else goes to fsspec."""

import pytest

from torch_tfrecord.remote.obstore_options import obstore_config


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {}),
        ({"anon": True}, {"skip_signature": True}),
        (
            {"key": "k", "secret": "s", "token": "t"},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"},
        ),
        (
            {
                "key": "k",
                "secret": "s",
                "client_kwargs": {"region_name": "eu-west-1"},
                "default_block_size": 5,
            },
            {"access_key_id": "k", "secret_access_key": "s", "region": "eu-west-1"},
        ),
        (
            {"anon": True, "client_kwargs": {"endpoint_url": "http://h:1"}},
            {"skip_signature": True, "endpoint": "http://h:1", "region": "us-east-1"},
        ),
        (
            {"anon": True, "endpoint_url": "https://h", "token": None},
            {"skip_signature": True, "endpoint": "https://h", "region": "us-east-1"},
        ),
        ({"anon": True, "requester_pays": True}, {"skip_signature": True, "request_payer": True}),
    ],
)
def test_s3(options, config):
    found = obstore_config("s3", "bucket", options)
    assert (found.kind, found.place, found.config) == ("S3Store", "bucket", config)
    assert found.client == ({"allow_http": True} if config.get("endpoint") == "http://h:1" else {})


def test_a_bucket_that_is_no_host():
    assert (
        obstore_config("s3", "my.bucket", {"anon": True}).config["virtual_hosted_style_request"]
        is False
    )


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("s3", {"config_kwargs": {"max_pool_connections": 3}}),
        ("s3", {"client_kwargs": {"verify": False}}),
        ("s3", {"client_kwargs": 3}),
        ("s3", {"key": 7}),
        ("s3", {"unheard_of": 1}),
        ("s3", {"profile": "nobody"}),
        ("gs", {"token": "browser"}),
        ("gs", {"token": {"type": "authorized_user"}}),
        ("az", {"credential": object()}),
        (
            "az",
            {
                "connection_string": "AccountName=a;AccountKey=k;EndpointSuffix=core.chinacloudapi.cn"
            },
        ),
        ("http", {"client_kwargs": {"auth": ("a", "b")}}),
        ("https", {"headers": {"Authorization": 1}}),
        (
            "https",
            {"headers": {"X-Key": "sent on by its client where a server sends it elsewhere"}},
        ),
        ("memory", {}),
        ("hf", {"token": "t"}),
    ],
)
def test_without_a_counterpart(scheme, options):
    assert obstore_config(scheme, "place", options) is None


def test_a_profile(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=a\naws_secret_access_key=b\n[me]\naws_access_key_id=c\naws_secret_access_key=d\naws_session_token=e\n[sso]\nsso_session=x\n"
    )
    (tmp_path / "config").write_text(
        "[default]\nregion=eu-north-1\n[profile me]\nregion=ap-south-1\noutput=json\n"
    )
    usual = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-north-1"}
    mine = {
        "access_key_id": "c",
        "secret_access_key": "d",
        "session_token": "e",
        "region": "ap-south-1",
    }
    assert obstore_config("s3", "b", {}).config == usual
    assert obstore_config("s3", "b", {"profile": "me"}).config == mine
    assert obstore_config("s3", "b", {"profile": "sso"}) is None
    assert obstore_config("s3", "b", {"anon": True}).config == {"skip_signature": True}
    monkeypatch.setenv("AWS_PROFILE", "me")
    assert obstore_config("s3", "b", {}).config == mine
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "z")
    assert obstore_config("s3", "b", {}).config == {}


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {}),
        ({"token": "anon", "project": "p"}, {"skip_signature": True}),
        ({"token": "google_default"}, {}),
        ({"token": "/k.json"}, {"application_credentials": "/k.json"}),
        (
            {"token": {"type": "service_account"}},
            {"service_account_key": '{"type": "service_account"}'},
        ),
        (
            {"token": "anon", "endpoint_url": "http://h"},
            {"skip_signature": True, "base_url": "http://h"},
        ),
    ],
)
def test_gcs(options, config):
    found = obstore_config("gs", "bucket", options)
    assert (found.kind, found.config) == ("GCSStore", config)


def test_an_emulator_of_gcsfs(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:1")
    assert obstore_config("gs", "bucket", {"token": "anon"}) is None


@pytest.mark.parametrize(
    ("place", "options", "config"),
    [
        ("c", {"account_name": "a", "account_key": "k"}, {"account_name": "a", "account_key": "k"}),
        ("c@a.dfs.core.windows.net", {"sas_token": "s"}, {"account_name": "a", "sas_key": "s"}),
        ("c", {"account_name": "a", "anon": True}, {"account_name": "a", "skip_signature": True}),
        (
            "c",
            {
                "connection_string": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;"
                "EndpointSuffix=core.windows.net"
            },
            {"account_name": "a", "account_key": "k=="},
        ),
    ],
)
def test_azure(place, options, config):
    found = obstore_config("abfs", place, options)
    assert (found.kind, found.place, found.config) == ("AzureStore", "c", config)


def test_http():
    options = {"headers": {"Authorization": "b"}, "client_kwargs": {"headers": {"cookie": "d"}}}
    found = obstore_config("https", "https://h", options)
    assert (found.kind, found.place) == ("HTTPStore", "https://h")
    assert found.client == {"default_headers": {"Authorization": "b", "cookie": "d"}}
    assert obstore_config("http", "http://h", {}).client == {"allow_http": True}


def test_what_gcsfs_is_asked_instead(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for payer in (True, 5):  # its default project, and what it may know
        assert obstore_config("gs", "bucket", {"requester_pays": payer}) is None
    for payer in (None, False):
        config = obstore_config("gs", "bucket", {"requester_pays": payer, "project": "p"})
        assert config.client == {}
    config = obstore_config("gs", "bucket", {"requester_pays": True, "project": "p"})
    assert config.client == {"default_headers": {"x-goog-user-project": "p"}}
