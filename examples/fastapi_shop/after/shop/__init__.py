"""A small shop: customers place orders, which take stock and money and become parcels."""
