package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/node"
)

// write writes everything into dir, which it removes again if the gateway or the nodes
// would refuse what it has written.
func (p *initPlan) write(dir string, out io.Writer) (err error) {
	if err := exists(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	// Folders and keys are this user's alone; nodes and gateways need one folder each.
	render := func(name, from string, nodes []initNode, words []string) error {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		text, err := fill(from, nodes, words)
		if err != nil {
			return err
		}
		return os.WriteFile(name, []byte(text), 0o600)
	}
	for _, s := range []*initSide{p.Client, p.Server} {
		folder := filepath.Join(dir, s.Cluster)
		files := []error{render(filepath.Join(folder, "gateway.yaml"), "gateway.yaml", s.Nodes, s.words()),
			os.WriteFile(filepath.Join(folder, "gateway.schema.json"), configfile.Schema("culvert gateway", config.Fields()), 0o600)}
		for _, n := range s.Nodes {
			files = append(files, render(filepath.Join(folder, "nodes", n.Name+".yaml"), "node.yaml", nil, n.words()))
		}
		files = append(files, os.WriteFile(filepath.Join(folder, "nodes", "node.schema.json"), configfile.Schema("culvert node", node.Fields()), 0o600))
		key, err := readOrMakeKey(filepath.Join(folder, "gateway.key"), false)
		if err = errors.Join(append(files, err)...); err != nil {
			return err
		}
		public := filepath.Join(dir, s.Peer.Cluster, "peer.pub")
		if err := errors.Join(os.MkdirAll(filepath.Dir(public), 0o700),
			os.WriteFile(public, []byte(key.Public().Base64()+"\n"), 0o600)); err != nil {
			return err
		}
	}
	if err := p.check(dir); err != nil {
		return err
	}
	// sudo does not look where this program may be.
	program, err := os.Executable()
	if err != nil {
		return err
	}
	nodes, words, how := slices.Concat(p.Client.Nodes, p.Server.Nodes), p.words(dir, program), "START.txt"
	if p.Here {
		how = "here.txt"
		if err := render(filepath.Join(dir, "here.sh"), "here.sh", nodes, words); err != nil {
			return err
		}
	}
	start := filepath.Join(dir, "START.txt")
	if err := render(start, how, nodes, words); err != nil {
		return err
	}
	text, err := os.ReadFile(start)
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// check reads what was written as gateways and nodes will.
func (p *initPlan) check(dir string) error {
	var errs []error
	for _, s := range []*initSide{p.Client, p.Server} {
		c, err := config.Load(filepath.Join(dir, s.Cluster, "gateway.yaml"))
		if err == nil {
			err = config.Check(c)
		}
		errs = append(errs, err)
		for _, n := range s.Nodes {
			_, err := node.LoadConfig(filepath.Join(dir, s.Cluster, "nodes", n.Name+".yaml"))
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n%s: nothing was written; mend the answer that the lines above name", err, dir)
	}
	return nil
}
