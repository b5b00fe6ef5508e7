package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"culvert/gateway/setup"
)

func newInitCommand() *cobra.Command {
	var side string
	var here bool
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write the configuration files and keys of two clusters, or of one side",
		Long: "Write the files of two clusters into DIR: keys, the configuration of both gateways and all nodes, and " +
			"DIR/START.txt with the ports to open and the commands to run. The command asks for what no flag gives, " +
			"and checks each answer at once. It chooses remaps, external CIDRs and internal addresses itself.\n\n" +
			"With --side, write only the files of one cluster, so that no private key leaves its machine. The " +
			"client's gateway connects to the server's. The command prints one line for the other side's culvert " +
			"init, and asks for the line that the other side prints.\n\n" +
			"If init stops early, your answers are kept in DIR/answers.txt; run the same command to continue. A " +
			"complete DIR is never changed.\n\n" +
			"For a further peering of a cluster, make DIR beside the folder of the first one. The command reads the " +
			"folders there and chooses other ports, addresses and interfaces.",
		Example: "  culvert init rome-milan --here\n" +
			"  culvert init rome-milan --cluster rome --pods 10.0.0.0/16 --gateway 172.18.0.9 \\\n" +
			"    --nodes rome-1=172.18.0.2,10.0.1.0/24 --peer milan --peer-pods 10.0.0.0/16 \\\n" +
			"    --peer-gateway 172.19.0.9 --peer-nodes milan-1=172.19.0.2,10.0.1.0/24 --endpoint 192.0.2.7\n" +
			"  culvert init rome --side client    # and on another machine: culvert init milan --side server",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := readAnswers(dir, cmd.Flags()); err != nil {
				return err
			}
			switch {
			case here && side != "":
				return errors.New("--side: --here makes both; leave one of them out")
			case side != "" && side != setup.Client && side != setup.Server:
				return fmt.Errorf("--side: want %s or %s", setup.Client, setup.Server)
			}
			x := &initRun{Command: cmd, dir: dir, plan: setup.New(dir, side, here), input: readLines(cmd.InOrStdin())}
			return x.run()
		},
	}
	for _, q := range setup.All() {
		cmd.Flags().String(q.Flag, "", strings.NewReplacer("{own}", "the cluster", "{peer}", "the peer", "{server}",
			"the peer", "{client}", "the cluster").Replace(q.Text))
	}
	cmd.Flags().StringVar(&side, "side", "", "write only this side: client, or server, to which the client connects")
	cmd.Flags().BoolVar(&here, "here", false,
		"both clusters on this machine: nodes and pods in two network namespaces, gateways in the machine's own")
	cmd.Flags().SortFlags = false
	return cmd
}

// initRun is one run of culvert init.
type initRun struct {
	*cobra.Command
	dir   string
	plan  *setup.Plan
	input <-chan string
	asked bool // the user has answered
}

func (x *initRun) run() error {
	p := x.plan
	own, others := p.Questions()
	err := x.ask(own)
	if err == nil && p.Side != "" {
		var done bool
		if done, err = x.exchange(others); done {
			return err
		}
	}
	if err == nil {
		err = p.Write(x.OutOrStdout())
	}
	if err == nil || !x.asked {
		return err
	}
	if keeping := x.keep(); keeping != nil {
		return errors.Join(err, keeping)
	}
	return fmt.Errorf("%w\nyour answers are kept in %s; continue with: culvert init %s", err,
		filepath.Join(x.dir, answersName), x.dir)
}

// exchange prints what the other side needs to know, and reads the other side's line. done without
// an error means that there is no such line yet.
func (x *initRun) exchange(others []setup.Question) (done bool, err error) {
	p := x.plan
	if external := x.Flags().Lookup(setup.AskExternal.Flag); external.Changed {
		if err := p.Answer(setup.AskExternal, external.Value.String()); err != nil {
			return true, err
		}
	}
	line, err := p.Introduce()
	if err != nil {
		return true, err
	}
	if err := x.keep(); err != nil {
		return true, err
	}
	fmt.Fprintf(x.OutOrStdout(),
		"The other side needs this line. It is no secret, but must arrive as it is:\n\n    %s\n\n", line)
	if slices.ContainsFunc(others, func(q setup.Question) bool { return x.Flags().Changed(q.Flag) }) {
		return false, x.answered(others)
	}
	ok, err := x.hear(others)
	if err == nil && !ok {
		fmt.Fprintf(x.OutOrStdout(),
			"When the other side's init has printed its line, go on with: culvert init %s LINE\n", x.dir)
	}
	return !ok, err
}

// answersName is the file in DIR with the answers so far.
const answersName = "answers.txt"

// keep saves the answers so far.
func (x *initRun) keep() error {
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(x.dir, answersName), []byte(x.plan.Answers()), 0o600)
}

// readAnswers sets flags that the command line leaves out to the answers kept in dir. dir must be
// new, or have such answers and no complete files.
func readAnswers(dir string, flags *pflag.FlagSet) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	name := filepath.Join(dir, answersName)
	text, err := os.ReadFile(name)
	if _, complete := os.Lstat(filepath.Join(dir, setup.StartName)); err != nil || complete == nil {
		return fmt.Errorf("%s exists and is not changed; choose another folder", dir)
	}
	endpoint, _ := flags.GetString(setup.AskEndpoint.Flag)
	for line := range strings.Lines(string(text)) {
		flag, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		flag = strings.TrimPrefix(flag, "--")
		if flags.Changed(flag) {
			if flag == setup.AskEndpoint.Flag && endpoint != value &&
				strings.HasPrefix(string(text), "--side "+setup.Server) {
				return errTwoServers
			}
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return fmt.Errorf("%s: %w; remove the line, or the folder", name, err)
		}
	}
	return nil
}

var (
	errTwoServers = errors.New("--endpoint: the other side is a server too; remove the folder of one side, and make " +
		"it again, with --side client")
	errTwoClients = errors.New("--endpoint: missing; a server prints it. If the other side is a client too, make one " +
		"of them again, with --side server")
)
