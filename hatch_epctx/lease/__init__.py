"""Locks and leases: mutual exclusion that ends with the process, however it dies.

Everything rests on the operating system's lock of one open file (flock; LockFileEx on Windows), which is gone when
the process is gone: no heartbeat, no clean-up step, no clock. Threads exclude each other as processes do, since
every acquisition opens the file anew. Containers that share the folder on one host share its locks, whatever their
namespaces; a process id shown in a message is that of the holder's own container.

What this does not give:

- Fairness: of several waiters any may be next.
- Network file systems: NFS maps flock to its own byte-range locks, which a server restart or a lost connection may
  drop while the holder goes on; some mounts keep locks to one host, and others have none at all, which is refused
  (`StoreError`, reason "no-locks"). Whoever removes things must not trust leases there (see `store.filesystem`).
- A fork without exec: the child closes its copies, so neither side's locks depend on the other, and a lock that is
  being taken by another thread at that moment is not copied.
- Someone who deletes the lock files by hand while they are held: later ones lock new files. Nothing here unlinks a
  lock file.

`locking` holds the locks, `claims` the leases. Windows: not run there.
"""

from __future__ import annotations

from hatch_epctx.lease.claims import Lease, is_leased, unleased
from hatch_epctx.lease.locking import lock

__all__ = ["Lease", "is_leased", "lock", "unleased"]
