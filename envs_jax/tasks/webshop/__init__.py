"""A web shop."""

from envs_jax.tasks.webshop.env import WebShop
from envs_jax.tasks.webshop.products import Catalogue, Goal, Product, read_catalogue

__all__ = ["Catalogue", "Goal", "Product", "WebShop", "read_catalogue"]
