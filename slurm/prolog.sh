#!/bin/sh
# Slurm's Prolog (slurm.conf: Prolog=…): lets no job start on a node that guardrun has quarantined, or whose devices no
# run could use. Copy it to where slurm.conf names it; see docs/slurm.md, above all nohold_on_prolog_fail.
# Whatever goes wrong with guardrun itself, the job starts.
GUARDCTL=${GUARDCTL:-/opt/guardrun/bin/guardctl}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd / || exit 0
[ -x "$GUARDCTL" ] || exit 0
timeout --signal=KILL 20 "$GUARDCTL" slurm prolog </dev/null
case $? in
    69 | 71) exit 1 ;; # quarantined; not fit
    *) exit 0 ;;
esac
