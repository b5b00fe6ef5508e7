package main

import (
	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
)

func main() { cli.Run(newRootCommand()) }

func newRootCommand() *cobra.Command {
	root := cli.New("culvert-lab", "Two clusters in network namespaces: check them, or explore", examples,
		newCheckCommand(), newUpCommand(), newDownCommand(), newExecCommand(), newStatusCommand(), newRestartCommand(),
		newBreakCommand(), newMendCommand(),
		newProbeCommand(), newBenchCommand(), newReferenceCommand(), newWithoutOffloadsCommand(),
		cli.NewVersionCommand("culvert-lab"))
	root.Long = "Two clusters with the same pod CIDR in network namespaces, with real gateways and nodes. Needs\n" +
		"root or user namespaces and touches nothing that it did not make. Hosts are rome/pod1, rome/pod2,\n" +
		"rome/node1, rome/node2, rome/gateway, rome/client, rome/router, and the same of milan."
	return root
}

// examples are what --help shows of commands.
var examples = map[string]string{
	"culvert-lab":        "  culvert-lab check\n  culvert-lab up --mode vxlan",
	"culvert-lab check":  "  culvert-lab check --brief\n  culvert-lab check --mode tun --offloads off",
	"culvert-lab up":     "  culvert-lab up --mode vxlan\n  culvert-lab exec rome/pod1 ping -c 3 milan/pod1",
	"culvert-lab down":   "  culvert-lab down",
	"culvert-lab status": "  culvert-lab status -o json",
	"culvert-lab probe":  "  culvert-lab probe",
	"culvert-lab bench":  "  culvert-lab bench --quick",
}
