"""The supervisor's eyes: what /proc, py-spy, netlink, boards and error files show. Facts only, no judgement."""
