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

	"culvert/gateway/configfile"
)

// A question asks for something that only the user knows. A flag or an answer gives it.
type question struct {
	flag    string
	text    string // {own}, {peer}, {client} and {server} stand for names of clusters
	example string
	here    string                                   // the answer of --here
	read    func(p *initPlan, e *asked, text string) // reads the answer into the plan, and faults into e
}

// Questions about the user's own cluster, and about the other one.
var (
	askCluster = question{"cluster", "name of the cluster whose gateway connects to the other", "rome", "rome",
		func(p *initPlan, e *asked, text string) { p.Own.readName(e, text) }}
	askPods = question{"pods", "CIDR of {own}'s pods, or one of IPv4 and one of IPv6 with a comma between",
		"10.0.0.0/16", "10.0.0.0/16",
		func(p *initPlan, e *asked, text string) { p.Own.readPods(e, text) }}
	askGateway = question{"gateway", "address of {own}'s gateway, by which its nodes reach it", "172.18.0.9",
		"198.18.1.1",
		func(p *initPlan, e *asked, text string) { p.Own.Underlay = e.Underlay(e.flag, configfile.Scalar(text)) }}
	askNodes = question{"nodes",
		"{own}'s nodes, as NAME=ADDRESS,PODCIDR with blanks between nodes, and a PODCIDR of each family of pods",
		"{own}-1=172.18.0.2,10.0.1.0/24 {own}-2=172.18.0.3,10.0.2.0/24", "rome-1=198.18.1.2,10.0.1.0/24",
		func(p *initPlan, e *asked, text string) { p.Own.readNodes(e, text) }}
	askPeer = question{"peer", "name of the other cluster, which is connected to", "milan", "milan",
		func(p *initPlan, e *asked, text string) { p.Own.Peer.readName(e, text) }}
	askPeerPods = question{"peer-pods", "CIDR of {peer}'s pods, of the same families as {own}'s", "10.0.0.0/16",
		"10.0.0.0/16",
		func(p *initPlan, e *asked, text string) { p.Own.Peer.readPods(e, text) }}
	askPeerGateway = question{"peer-gateway", "address of {peer}'s gateway, by which its nodes reach it", "172.19.0.9",
		"198.18.2.1",
		func(p *initPlan, e *asked, text string) {
			p.Own.Peer.Underlay = e.Underlay(e.flag, configfile.Scalar(text))
		}}
	askPeerNodes = question{"peer-nodes", "{peer}'s nodes, in the same way", "{peer}-1=172.19.0.2,10.0.1.0/24",
		"milan-1=198.18.2.2,10.0.1.0/24",
		func(p *initPlan, e *asked, text string) { p.Own.Peer.readNodes(e, text) }}
	askEndpoint = question{"endpoint",
		"address or name of {server}'s gateway, by which {client}'s reaches it, with :PORT unless 51840",
		"192.0.2.7", "127.0.0.1",
		(*initPlan).readEndpoint}
	askPeerExternal = question{flag: "peer-external",
		text: "with --side, the CIDR by which {peer} wants what is no pod there to be seen",
		read: func(p *initPlan, e *asked, text string) { p.Own.Peer.readExternal(e, text) }}
	askPeerKey = question{flag: "peer-key", text: "with --side, the public key of {peer}'s gateway",
		read: func(p *initPlan, e *asked, text string) { p.Own.Peer.readKey(e, text) }}
	askExternal = question{flag: "external",
		text: "with --side, the CIDR by which {peer} sees what is no pod here; chosen without it",
		read: func(p *initPlan, e *asked, text string) { p.Own.readExternal(e, text) }}
)

// questions returns the questions about the sides to be made, and those that the other side
// answers.
func (p *initPlan) questions() (own, others []question) {
	own, others = []question{askCluster, askPods, askGateway, askNodes}, []question{askPeer, askPeerPods,
		askPeerExternal, askPeerKey}
	if p.Side != "" {
		own[0].text = "name of this cluster"
	}
	switch p.Side {
	case sideServer:
		return append(own, askEndpoint), others
	case sideClient:
		return own, append(others, askEndpoint)
	}
	return append(own, askPeer, askPeerPods, askPeerGateway, askPeerNodes, askEndpoint), nil
}

// Values of --side.
const (
	sideClient = "client"
	sideServer = "server"
)

func newInitCommand() *cobra.Command {
	var side string
	var here bool
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write the configuration files and keys of two clusters, or of one side",
		Long: "Write the files of two clusters into DIR: keys, the configuration of both gateways and all nodes, and\n" +
			"DIR/START.txt with the ports to open and the commands to run. The command asks for what no flag gives, and\n" +
			"checks each answer at once. It chooses remaps, external CIDRs and internal addresses itself.\n\n" +
			"With --side, write only the files of one cluster, so that no private key leaves its machine. The client's\n" +
			"gateway connects to the server's. The command prints one line for the other side's culvert init, and asks for\n" +
			"the line that the other side prints.\n\n" +
			"If init stops early, your answers are kept in DIR/answers.txt; run the same command to continue. A complete\n" +
			"DIR is never changed.\n\n" +
			"For a further peering of a cluster, make DIR beside the folder of the first one. The command reads the folders\n" +
			"there and chooses other ports, addresses and interfaces.",
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
			case side != "" && side != sideClient && side != sideServer:
				return fmt.Errorf("--side: want %s or %s", sideClient, sideServer)
			}
			x := &initRun{Command: cmd, dir: dir, plan: newInitPlan(dir, side, here), input: readLines(cmd.InOrStdin())}
			return x.run()
		},
	}
	for _, q := range []question{askCluster, askPods, askGateway, askNodes, askPeer, askPeerPods, askPeerGateway,
		askPeerNodes, askEndpoint,
		askExternal, askPeerExternal, askPeerKey} {
		cmd.Flags().String(q.flag, "", strings.NewReplacer("{own}", "the cluster", "{peer}", "the peer", "{server}",
			"the peer", "{client}", "the cluster").Replace(q.text))
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
	plan  *initPlan
	input <-chan string
	asked bool // the user has answered
}

func (x *initRun) run() error {
	p := x.plan
	own, others := p.questions()
	err := x.ask(own)
	if err == nil && p.Side != "" {
		var done bool
		if done, err = x.exchange(others); done {
			return err
		}
	}
	if err == nil {
		err = p.choose()
	}
	if err == nil {
		err = p.write(x.dir, x.OutOrStdout())
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
func (x *initRun) exchange(others []question) (done bool, err error) {
	p := x.plan
	if external := x.Flags().Lookup(askExternal.flag); external.Changed {
		if err := x.read(askExternal, external.Value.String()); err != nil {
			return true, err
		}
	}
	if err := p.chooseOwn(); err != nil {
		return true, err
	}
	line, err := p.introduce(x.dir)
	if err != nil {
		return true, err
	}
	if err := x.keep(); err != nil {
		return true, err
	}
	fmt.Fprintf(x.OutOrStdout(),
		"The other side needs this line. It is no secret, but must arrive as it is:\n\n    %s\n\n", line)
	if slices.ContainsFunc(others, func(q question) bool { return x.Flags().Changed(q.flag) }) {
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

// keep saves the answers so far: a flag and its value in each line.
func (x *initRun) keep() error {
	var b strings.Builder
	if x.plan.Side != "" {
		fmt.Fprintf(&b, "--side %s\n", x.plan.Side)
	}
	own, others := x.plan.questions()
	for _, q := range slices.Concat(own, []question{askExternal}, others) {
		if text := x.plan.answers[q.flag]; text != "" {
			fmt.Fprintf(&b, "--%s %s\n", q.flag, text)
		}
	}
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(x.dir, answersName), []byte(b.String()), 0o600)
}

// readAnswers sets flags that the command line leaves out to the answers kept in dir. dir must be
// new, or have such answers and no complete files.
func readAnswers(dir string, flags *pflag.FlagSet) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	name := filepath.Join(dir, answersName)
	text, err := os.ReadFile(name)
	if _, complete := os.Lstat(filepath.Join(dir, startName)); err != nil || complete == nil {
		return fmt.Errorf("%s exists and is not changed; choose another folder", dir)
	}
	endpoint, _ := flags.GetString(askEndpoint.flag)
	for line := range strings.Lines(string(text)) {
		flag, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		flag = strings.TrimPrefix(flag, "--")
		if flags.Changed(flag) {
			if flag == askEndpoint.flag && endpoint != value && strings.HasPrefix(string(text), "--side "+sideServer) {
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
	errTwoServers = errors.New("--endpoint: the other side is a server too; remove the folder of one side, and make it again, with --side client")
	errTwoClients = errors.New("--endpoint: missing; a server prints it. If the other side is a client too, make one of them again, with --side server")
)
