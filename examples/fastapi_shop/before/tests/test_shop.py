import time
from typing import Any

from fastapi.testclient import TestClient


def place(shop: TestClient, **values: Any) -> Any:
    return shop.post("/orders", json={"reference": "r-1", "customer_id": 1, "sku": "tea", "quantity": 2} | values)


def until(shop: TestClient, order: int, status: str) -> Any:
    deadline = time.monotonic() + 30
    while (state := shop.get(f"/orders/{order}").json())["status"] != status:
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    return state


def test_an_order_takes_stock_and_money_and_becomes_a_parcel(shop: TestClient, query: Any) -> None:
    order = place(shop).json()["id"]
    assert until(shop, order, "sent")["parcel"] == f"parcel-{order}"
    assert query("select stock from products where sku = 'tea'") == 8
    assert query("select balance_cents from customers") == 499_000


def test_a_large_order_waits_for_its_approval(shop: TestClient, query: Any) -> None:
    order = place(shop, sku="samovar").json()["id"]
    until(shop, order, "waiting for approval")
    assert query("select balance_cents from customers") == 500_000
    assert shop.post(f"/orders/{order}/approval", json={"by": "ada"}).status_code == 202
    until(shop, order, "sent")
    assert shop.post(f"/orders/{order}/approval", json={"by": "ada"}).status_code == 409
    assert query("select balance_cents from customers") == 260_000


def test_an_order_that_cannot_be_filled_says_why(shop: TestClient) -> None:
    until(shop, place(shop, quantity=11).json()["id"], "out of stock")


def test_an_order_that_breaks_a_rule_is_refused(shop: TestClient, query: Any) -> None:
    assert place(shop, quantity=0).status_code == 409
    assert place(shop, customer_id=7).status_code == 409
    assert place(shop, sku="coffee").status_code == 409
    assert query("select count(*) from orders") == 0
    assert place(shop).status_code == 201
    assert place(shop).status_code == 409


def test_an_order_that_does_not_exist_is_not_found(shop: TestClient) -> None:
    assert shop.get("/orders/4711").status_code == 404
    assert shop.post("/orders/4711/approval", json={"by": "ada"}).status_code == 404
