"""Executes a program with the restrictions of a systemd unit, as far as a process can take them on by itself; started as root.

    python confined.py UNIT PYTHON-PROGRAM [ARGUMENT...]

ProtectSystem=strict and PrivateTmp by a mount namespace; CapabilityBoundingSet, NoNewPrivileges and an unprivileged user by setpriv;
MemoryDenyWriteExecute by prctl; SystemCallFilter by libseccomp, with the sets of systemd-analyze: a forbidden call kills the process.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
SECCOMP_KILL_PROCESS, SECCOMP_ALLOW = 0x80000000, 0x7FFF0000
NOBODY = "65534"
READ_ONLY = "mount --make-rprivate / && mount --bind / / && mount -o remount,bind,ro /"
PRIVATE_TMP = "mount -t tmpfs tmpfs /tmp"
CHECKOUT = Path(__file__).parents[2]
WITHOUT_RIGHTS = (
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"),
)


def directives(unit: Path) -> list[tuple[str, str]]:
    lines = (line.partition("=") for line in unit.read_text().splitlines() if line[:1].isupper())
    return [(name, value) for name, _, value in lines]


def system_calls(name: str) -> set[str]:
    """Of a set such as @system-service, with those of the sets in it."""
    if not name.startswith("@"):
        return {name}
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout
    names = [line.strip() for line in shown.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*map(system_calls, names))


def filtered(unit: Path) -> set[str]:
    allowed: set[str] = set()
    for name, value in directives(unit):
        if name == "SystemCallFilter":
            for word in value.removeprefix("~").split():
                allowed = allowed - system_calls(word) if value.startswith("~") else allowed | system_calls(word)
    return allowed


def hide_tmp() -> str:
    """Shell commands for PrivateTmp. A checkout below /tmp stays visible, since the interpreter is in it."""
    if not CHECKOUT.is_relative_to("/tmp"):
        return PRIVATE_TMP
    here = shlex.quote(str(CHECKOUT))
    back = f"mkdir -p {here} && mount --bind /mnt {here} && mount -o remount,bind,ro {here} && umount /mnt"
    return f"mount --bind {here} /mnt && {PRIVATE_TMP} && {back}"


def confine(unit: Path) -> None:
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    if ("MemoryDenyWriteExecute", "yes") in directives(unit):
        assert libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    if not (allowed := filtered(unit)):
        return
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_rule_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint)
    seccomp.seccomp_load.argtypes = (ctypes.c_void_p,)
    rules = seccomp.seccomp_init(SECCOMP_KILL_PROCESS)
    for name in allowed:
        if (number := seccomp.seccomp_syscall_resolve_name(name.encode())) >= 0:
            assert seccomp.seccomp_rule_add(rules, SECCOMP_ALLOW, number, 0) == 0, name
    assert seccomp.seccomp_load(rules) == 0


def main() -> None:
    if os.environ.pop("CONFINED", "") == "":
        os.environ["CONFINED"] = "1"
        again = [*WITHOUT_RIGHTS, sys.executable, *sys.argv]
        os.execvp(
            "unshare", ["unshare", "--mount", "sh", "-c", f'{READ_ONLY} && {hide_tmp()} && exec "$@"', "sh", *again]
        )
    confine(Path(sys.argv[1]))
    # Not by exec: without capabilities the interpreter's own directory may be closed to this user.
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
