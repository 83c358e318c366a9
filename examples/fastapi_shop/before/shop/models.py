"""The tables of the shop."""

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    __table_args__ = (CheckConstraint("balance_cents >= 0"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    balance_cents: Mapped[int]


class Product(Base):
    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0"),)

    sku: Mapped[str] = mapped_column(primary_key=True)
    price_cents: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("quantity > 0"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str] = mapped_column(unique=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id", deferrable=True, initially="DEFERRED"))
    sku: Mapped[str] = mapped_column(ForeignKey("products.sku"))
    quantity: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")
    approved_by: Mapped[str | None]
    parcel: Mapped[str | None]
