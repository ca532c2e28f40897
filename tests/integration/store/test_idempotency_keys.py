"""Claims of Idempotency-Keys."""

from services.store import Store
from services.store.access.idempotency_keys import Answered, Claim


async def test_a_try_whose_claim_has_lapsed_changes_nothing(store: Store) -> None:
    keys = store.idempotency_keys
    assert await keys.claim("key", "request", "late", "seed") == Claim("seed", False)
    await keys.release("key", "late")
    assert await keys.claim("key", "request", "second", "other") == Claim("seed", True)

    await keys.forget("key", "late")
    await keys.finish("key", "late", Answered(201, [], b"late"))
    await keys.finish("key", "second", Answered(200, [], b"second"))
    await keys.forget("key", "late")

    repeated = await keys.claim("key", "request", "third", "other")
    assert repeated == Answered(200, [], b"second")


async def test_a_key_whose_request_was_refused_is_free_for_another_request(store: Store) -> None:
    keys = store.idempotency_keys
    await keys.claim("key", "request", "first", "seed")
    await keys.forget("key", "first")
    assert await keys.claim("key", "another", "second", "new") == Claim("new", False)
