package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"culvert/gateway"
	"culvert/ipam"
	"culvert/nat"
)

// checkedSide is what one cluster would see of the other.
type checkedSide struct {
	File     string    `json:"file"`
	Cluster  string    `json:"cluster"`
	Peer     string    `json:"peer"`
	Overlaps []overlap `json:"overlaps"`
	Seen     []seen    `json:"seen"`
	Lines    []string  `json:"lines,omitempty"` // to be written into File
	Error    string    `json:"error,omitempty"` // why there is no way
}

// overlap is a CIDR of the peer that hides something of this cluster's.
type overlap struct {
	Kind   ipam.Kind    `json:"kind"`
	CIDR   netip.Prefix `json:"cidr"`
	Field  string       `json:"field"` // what it hides
	Prefix netip.Prefix `json:"prefix"`
}

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
	isJSON := outputFlag(cmd)
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
	var configs []*gateway.Config
	var errs []error
	for _, file := range files {
		c, err := gateway.LoadNetworks(file)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				errs = append(errs, fmt.Errorf("%s: %s", file, strings.TrimSuffix(line, "\n")))
			}
		}
		configs = append(configs, c)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	here := configs[0]
	if len(configs) == 1 {
		if len(here.Remote) == 0 {
			return nil, fmt.Errorf("%s: network.remote.podCIDRs: missing; say what the peer has, or give its file too", files[0])
		}
		return []checkedSide{checkSide(files[0], *here, here.Remote, here.Peer, true)}, nil
	}
	there := configs[1]
	if here.Cluster == there.Cluster {
		return nil, fmt.Errorf("%s: cluster: %q is the cluster of %s too", files[1], there.Cluster, files[0])
	}
	return []checkedSide{
		checkSide(files[0], *here, remoteOf(there), there.Cluster, true),
		checkSide(files[1], *there, remoteOf(here), here.Cluster, false),
	}, nil
}

// remoteOf is what c's peer has to see.
func remoteOf(c *gateway.Config) []nat.RemoteCIDR {
	var rs []nat.RemoteCIDR
	for _, p := range c.Local.PodCIDRs {
		rs = append(rs, nat.RemoteCIDR{Real: p, Remapped: p})
	}
	for _, p := range c.Local.ExternalCIDRs {
		rs = append(rs, nat.RemoteCIDR{Real: p, Remapped: p, External: true})
	}
	return rs
}

// checkSide checks what c would see of a peer that has remote. Only if c is this machine's
// gateway's do the networks that this machine is connected to count.
func checkSide(file string, c gateway.Config, remote []nat.RemoteCIDR, peer string, here bool) checkedSide {
	side := checkedSide{File: file, Cluster: c.Cluster, Peer: peer, Overlaps: []overlap{}, Seen: []seen{}}
	written, memory := c.Remote, c.IPAM.File
	changed := len(written) != len(remote) || c.Peer != peer
	c.Peer, c.Remote = peer, nil
	var taken []ipam.Taken
	for _, t := range c.Taken() {
		if here || !t.Connected {
			taken = append(taken, t)
		}
	}
	for _, r := range remote {
		known := false
		for _, w := range written {
			if w.Real == r.Real && w.External == r.External {
				known, r.Remapped = true, w.Remapped
			}
		}
		for _, t := range taken {
			if t.Prefix.Overlaps(r.Real) {
				side.Overlaps = append(side.Overlaps, overlap{kindOf(r), r.Real, t.Name, t.Prefix})
			}
			if t.Prefix.Overlaps(r.Remapped) {
				known, r.Remapped = false, netip.Prefix{}
			}
		}
		changed = changed || !known || !r.Remapped.IsValid() && memory == ""
		if r.Remapped.IsValid() {
			owner := ipam.Owner{Peer: peer, Kind: kindOf(r), Real: r.Real.String()}
			taken = append(taken, ipam.Taken{Name: "network.remote of " + peer, Prefix: r.Remapped, Owner: owner})
		}
		c.Remote = append(c.Remote, r)
	}
	ledger, err := new(ipam.Ledger), error(nil)
	if memory != "" {
		ledger, err = ipam.Open(memory).Read()
	}
	var remapped *gateway.Remapped
	if err == nil {
		remapped, err = c.Preview(ledger, taken, time.Time{})
	}
	if err != nil {
		side.Error = err.Error()
		return side
	}
	side.see(&c, remapped)
	if changed {
		side.Lines = lines(remapped.Config.Remote, side.Seen, peer, memory != "")
	}
	return side
}

func kindOf(r nat.RemoteCIDR) ipam.Kind {
	if r.External {
		return ipam.External
	}
	return ipam.Pod
}

// see notes as what each of c's remote CIDRs is seen.
func (side *checkedSide) see(c *gateway.Config, remapped *gateway.Remapped) {
	isNew := map[ipam.Owner]bool{}
	for _, choice := range remapped.Choices {
		isNew[choice.Owner] = choice.New
	}
	for i, r := range remapped.Config.Remote {
		how := "configured"
		switch {
		case !c.Remote[i].Remapped.IsValid():
			how = remembered(isNew[ipam.Owner{Peer: c.Peer, Kind: kindOf(r), Real: r.Real.String()}])
		case r.Remapped == r.Real:
			how = "as it is"
		}
		side.Seen = append(side.Seen, seen{kindOf(r), r.Real, r.Remapped, how})
	}
}

// lines is the YAML that a configuration needs for remote. Only one with a memory may say
// auto.
func lines(remote []nat.RemoteCIDR, how []seen, peer string, memory bool) []string {
	out := []string{"peer: " + peer, "network:", "  remote:"}
	for _, external := range []bool{false, true} {
		list := map[bool]string{false: "    podCIDRs:", true: "    externalCIDRs:"}[external]
		for i, r := range remote {
			if r.External != external {
				continue
			}
			if list != "" {
				out = append(out, list)
				list = ""
			}
			remap := fmt.Sprintf(", remap: %s", r.Remapped)
			if how[i].How == "as it is" {
				remap = ""
			} else if memory && how[i].How != "configured" {
				remap = ", remap: auto"
			}
			out = append(out, fmt.Sprintf("      - {cidr: %s%s}", r.Real, remap))
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
			fmt.Fprintf(&b, "  sees %s %s as %s, %s\n", v.Kind, v.CIDR, v.Remapped, v.How)
		}
		if len(s.Lines) > 0 {
			fmt.Fprintf(&b, "  write into %s:\n    %s\n", s.File, strings.Join(s.Lines, "\n    "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict is the error that makes the exit status.
func verdict(sides []checkedSide) error {
	var impossible []error
	needed := false
	for _, s := range sides {
		if s.Error != "" {
			for line := range strings.Lines(s.Error) {
				impossible = append(impossible, fmt.Errorf("%s: %s", s.File, strings.TrimSuffix(line, "\n")))
			}
		}
		needed = needed || len(s.Lines) > 0
	}
	if len(impossible) > 0 {
		return errors.Join(impossible...)
	}
	if needed {
		return failure{errors.New("ipam check: remaps needed; write the lines above")}
	}
	return nil
}
