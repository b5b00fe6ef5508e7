package main

import (
	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
)

func main() { cli.Run(newRootCommand()) }

func newRootCommand() *cobra.Command {
	commands := append(kubeCommands(), newGatewayCommand(), newNodeCommand(), newInitCommand(), newLabCommand(),
		newKeygenCommand(), newIPAMCommand(),
		newStatusCommand(), newConnectionsCommand(), newTraceCommand(), newCaptureCommand(), newReloadCommand(),
		newRulesCommand(), newRoutesCommand(),
		newPageCommand(), newDoctorCommand(), newGatherCommand(), cli.NewVersionCommand("culvert"), newConfigTopic())
	return cli.New("culvert", "Carry pod traffic between Kubernetes clusters in user space", examples, commands...)
}

// examples are what --help shows of commands.
var examples = map[string]string{
	"culvert": "  culvert init rome-milan --here\n  culvert status\n  culvert help config",
	"culvert gateway": "  culvert gateway --config rome/gateway.yaml --check\n" +
		"  culvert gateway --config rome/gateway.yaml",
	"culvert node": "  culvert node --config rome/nodes/rome-1.yaml --check\n" +
		"  sudo culvert node --config rome/nodes/rome-1.yaml",
	"culvert status": "  culvert status\n" +
		"  culvert status --watch\n" +
		"  culvert status --socket rome -o json | jq .tunnel.state",
	"culvert keygen": "  culvert keygen rome.key > rome.pub\n  culvert keygen --public rome.key",
	"culvert ipam": "  culvert ipam check rome/gateway.yaml milan/gateway.yaml\n" +
		"  culvert ipam list --config rome/gateway.yaml",
	"culvert ipam list":    "  culvert ipam list --config rome/gateway.yaml",
	"culvert ipam acquire": "  culvert ipam acquire milan pod 10.0.0.0/16 --config rome/gateway.yaml",
	"culvert ipam release": "  culvert ipam release milan --config rome/gateway.yaml",
	"culvert ipam check":   "  culvert ipam check rome/gateway.yaml milan/gateway.yaml",
}
