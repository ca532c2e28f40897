"""The bucket for large payloads."""

import pytest
from obstore.store import S3Store

from services.payloads.objects import bucket


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_store_without_tls_is_used_where_its_operator_allows_it(
    monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    store = bucket("s3://bucket/folder")
    assert isinstance(store, S3Store)
    options = store.client_options
    assert options is not None
    assert str(options["allow_http"]).lower() == allowed
