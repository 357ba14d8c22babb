"""Runs programs that nobody has read. `pool` is the caller's side; every other module runs in processes without JAX.

Those processes are started from files of this package alone (as a package of its own name), so all modules but `pool`
import nothing but the standard library and one another.
"""
