package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/gateway/config"
	"culvert/ipam"
	"culvert/nat/rules"
)

// checkedSide says what one cluster would see of the other.
type checkedSide struct {
	File     string    `json:"file"`
	Cluster  string    `json:"cluster"`
	Peer     string    `json:"peer"`
	Overlaps []overlap `json:"overlaps"`
	Seen     []seen    `json:"seen"`
	Lines    []string  `json:"lines,omitempty"` // to be added to File
	Error    string    `json:"error,omitempty"` // why it is impossible
}

// overlap is a CIDR of the peer that would hide a field of this cluster's configuration.
type overlap struct {
	Kind   ipam.Kind    `json:"kind"`
	CIDR   netip.Prefix `json:"cidr"`
	Field  string       `json:"field"`
	Prefix netip.Prefix `json:"prefix"`
}

// seen is how this cluster sees a CIDR of the peer.
type seen struct {
	Kind     ipam.Kind    `json:"kind"`
	CIDR     netip.Prefix `json:"cidr"`
	Remapped netip.Prefix `json:"remapped"`
	How      string       `json:"how"` // as it is | configured | remembered | new
}

func newIPAMCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE [PEER'S FILE]",
		Short: "Find what two clusters' CIDRs overlap with, before they are peered",
		Long: "Find what two clusters' CIDRs overlap with, what each would see the other as, and the lines that\n" +
			"either configuration needs. It reads only, and needs no keys. FILE is the configuration of this\n" +
			"machine's gateway, whose memory and networks count; without the peer's, network.remote says what\n" +
			"the peer has. Exit status 0: nothing to do, 1: remaps needed, 2: not possible.",
		Args: cobra.RangeArgs(1, 2),
	}
	isJSON := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		asJSON, err := isJSON()
		if err != nil {
			return err
		}
		sides, err := checkPeering(files)
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), sides)
		} else {
			err = printSides(cmd.OutOrStdout(), sides)
		}
		return errors.Join(err, verdict(sides))
	}
	return cmd
}

func checkPeering(files []string) ([]checkedSide, error) {
	var configs []*config.Config
	var errs []error
	for _, file := range files {
		c, err := config.LoadNetworks(file)
		errs = append(errs, err)
		configs = append(configs, c)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	here := configs[0]
	if len(configs) == 1 {
		if len(here.Remote) == 0 {
			return nil, fmt.Errorf("%s: network.remote.podCIDRs: missing; say what the peer has, or give its file too",
				files[0])
		}
		return []checkedSide{checkSide(files[0], *here, here.Remote, here.Peer, true)}, nil
	}
	there := configs[1]
	if here.Cluster == there.Cluster {
		return nil, fmt.Errorf("%s: cluster: %q is also the cluster of %s; give the files of two clusters", files[1],
			there.Cluster, files[0])
	}
	return []checkedSide{
		checkSide(files[0], *here, remoteOf(there), there.Cluster, true),
		checkSide(files[1], *there, remoteOf(here), here.Cluster, false),
	}, nil
}

// remoteOf returns the CIDRs that c's peer must see.
func remoteOf(c *config.Config) []rules.RemoteCIDR {
	var rs []rules.RemoteCIDR
	for _, p := range c.Local.PodCIDRs {
		rs = append(rs, rules.RemoteCIDR{Real: p, Remapped: p})
	}
	for _, p := range c.Local.ExternalCIDRs {
		rs = append(rs, rules.RemoteCIDR{Real: p, Remapped: p, External: true})
	}
	return rs
}

// checkSide checks how c would see a peer that has the CIDRs remote. The networks of this machine
// count only if c is the configuration of this machine's gateway.
func checkSide(file string, c config.Config, remote []rules.RemoteCIDR, peer string, here bool) checkedSide {
	side := checkedSide{File: file, Cluster: c.Cluster, Peer: peer, Overlaps: []overlap{}, Seen: []seen{}}
	written, memory := c.Remote, c.IPAM.File != ""
	changed := len(written) != len(remote) || c.Peer != peer
	c.Peer, c.Remote = peer, nil
	taken := slices.DeleteFunc(c.Taken(), func(t ipam.Taken) bool { return t.Connected && !here })
	own := len(taken)
	for _, r := range remote {
		at := slices.IndexFunc(written, func(w rules.RemoteCIDR) bool {
			return w.Real == r.Real && w.External == r.External
		})
		if at >= 0 {
			r.Remapped = written[at].Remapped
		}
		v := seen{Kind: ipam.Pod, CIDR: r.Real, How: "configured"}
		if r.External {
			v.Kind = ipam.External
		}
		for i, t := range taken {
			if i < own && t.Prefix.Overlaps(r.Real) {
				side.Overlaps = append(side.Overlaps, overlap{v.Kind, r.Real, t.Name, t.Prefix})
			}
			if t.Prefix.Overlaps(r.Remapped) {
				r.Remapped, changed = netip.Prefix{}, true
			}
		}
		if r.Remapped.IsValid() {
			owner := ipam.Owner{Peer: peer, Kind: v.Kind, Real: r.Real.String()}
			taken = append(taken, ipam.Taken{Name: "the remap of " + owner.String(), Prefix: r.Remapped, Owner: owner})
		}
		if r.Remapped == r.Real {
			v.How = "as it is"
		}
		changed = changed || at < 0 || !r.Remapped.IsValid() && !memory
		c.Remote = append(c.Remote, r)
		side.Seen = append(side.Seen, v)
	}
	ledger, err := new(ipam.Ledger), error(nil)
	if memory {
		ledger, err = ipam.Open(c.IPAM.File).Read()
	}
	var remapped *config.Remapped
	if err == nil {
		remapped, err = c.Preview(ledger, taken, time.Time{})
	}
	if err != nil {
		side.Error = err.Error()
		return side
	}
	for i, choices := 0, remapped.Choices; i < len(remote); i++ { // choices are in the order of remote
		side.Seen[i].Remapped = remapped.Config.Remote[i].Remapped
		if !c.Remote[i].Remapped.IsValid() {
			side.Seen[i].How = remembered(choices[0].New)
			choices = choices[1:]
		}
	}
	if changed {
		side.Lines = lines(side.Seen, peer, memory)
	}
	return side
}

// lines returns the YAML that a configuration needs. It may say auto only if there is a store.
func lines(all []seen, peer string, memory bool) []string {
	out := []string{"peer: " + peer, "network:", "  remote:"}
	for _, kind := range []ipam.Kind{ipam.Pod, ipam.External} {
		out = append(out, fmt.Sprintf("    %sCIDRs:", kind))
		for _, v := range all {
			remap := fmt.Sprintf(", remap: %s", v.Remapped)
			if v.How == "as it is" {
				remap = ""
			} else if memory && v.How != "configured" {
				remap = ", remap: auto"
			}
			if v.Kind == kind {
				out = append(out, fmt.Sprintf("      - {cidr: %s%s}", v.CIDR, remap))
			}
		}
		if strings.HasSuffix(out[len(out)-1], ":") {
			out = out[:len(out)-1] // none of this kind
		}
	}
	return out
}

func printSides(w io.Writer, sides []checkedSide) error {
	var b strings.Builder
	for _, s := range sides {
		fmt.Fprintf(&b, "%s (%s) towards %s\n", s.Cluster, s.File, s.Peer)
		for _, o := range s.Overlaps {
			fmt.Fprintf(&b, "  overlap: %s %s with %s, %s\n", o.Kind, o.CIDR, o.Field, o.Prefix)
		}
		for _, v := range s.Seen {
			if !v.Remapped.IsValid() {
				fmt.Fprintf(&b, "  sees %s %s not at all: no remap could be chosen\n", v.Kind, v.CIDR)
				continue
			}
			fmt.Fprintf(&b, "  sees %s %s as %s, %s\n", v.Kind, v.CIDR, v.Remapped, v.How)
		}
		if len(s.Lines) > 0 {
			fmt.Fprintf(&b, "  write into %s:\n    %s\n", s.File, strings.Join(s.Lines, "\n    "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict returns the error that determines the exit status.
func verdict(sides []checkedSide) error {
	var impossible []error
	needed := false
	for _, s := range sides {
		if s.Error != "" {
			impossible = append(impossible, inFile(s.File, s.Error))
		}
		needed = needed || len(s.Lines) > 0
	}
	if len(impossible) > 0 {
		return errors.Join(impossible...)
	}
	if needed {
		return cli.Failed(errors.New("ipam check: remaps needed; write the lines above"))
	}
	return nil
}

// inFile names the file before each line of an error.
func inFile(file, text string) error {
	return errors.New(file + ": " + strings.ReplaceAll(text, "\n", "\n"+file+": "))
}
