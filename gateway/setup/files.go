package setup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"culvert/gateway/config"
	"culvert/gateway/configfile"
	"culvert/gateway/node"
	"culvert/gateway/wgkey"
)

// StartName is the file that says how to start. It is written last.
const StartName = "START.txt"

// makeKey makes the key of a side, or reads the one that an earlier init has made.
func (s *cluster) makeKey(dir string) error {
	name := filepath.Join(dir, s.Cluster, "gateway.key")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	_, err := os.Lstat(name)
	key, err := wgkey.Stored(name, err == nil)
	if err == nil {
		s.Key = key.Public()
	}
	return err
}

// Introduce chooses what the other side has to know of this one, makes its key, and returns it all
// as flags for the other side.
func (p *Plan) Introduce() (string, error) {
	if err := p.chooseOwn(); err != nil {
		return "", err
	}
	if err := p.Own.makeKey(p.Dir); err != nil {
		return "", err
	}
	line := fmt.Sprintf("--%s %s --%s %s --%s %s --%s %s", askPeer.Flag, p.Own.Cluster, askPeerPods.Flag,
		p.answers[askPods.Flag],
		askPeerExternal.Flag, p.answers[AskExternal.Flag], askPeerKey.Flag, p.Own.Key.Base64())
	if p.Own == p.Server {
		line += " --" + AskEndpoint.Flag + " " + p.Endpoint
	}
	return line, nil
}

// Write chooses what no question asks, writes all files, and prints how to start. If the gateway or
// the nodes would refuse the files, it removes them again.
func (p *Plan) Write(out io.Writer) (err error) {
	if err := p.choose(); err != nil {
		return err
	}
	dir := p.Dir
	_, missing := os.Lstat(dir)
	var written []string
	defer func() {
		switch {
		case err == nil:
		case errors.Is(missing, fs.ErrNotExist):
			os.RemoveAll(dir)
		default: // the key stays, because the other side may know it
			for _, name := range slices.Backward(written) {
				os.Remove(name)
			}
		}
	}()
	// Folders and keys are this user's alone; nodes and gateways need one folder each.
	put := func(text []byte, name ...string) error {
		file := filepath.Join(append([]string{dir}, name...)...)
		written = append(written, file)
		return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, text, 0o600))
	}
	render := func(from string, nodes []nodeSpec, words []string, name ...string) error {
		text, err := fill(from, nodes, words)
		if err != nil {
			return err
		}
		return put([]byte(text), name...)
	}
	for _, s := range p.made() {
		if err := s.makeKey(dir); err != nil {
			return err
		}
	}
	for _, s := range p.made() {
		files := []error{
			render("gateway.yaml", s.Nodes, s.words(), s.Cluster, "gateway.yaml"),
			put(configfile.Schema("culvert gateway", config.Fields()), s.Cluster, "gateway.schema.json"),
			put([]byte(s.Peer.Key.Base64()+"\n"), s.Cluster, "peer.pub"),
			put(configfile.Schema("culvert node", node.Fields()), s.Cluster, "nodes", "node.schema.json"),
		}
		for _, n := range s.Nodes {
			files = append(files, render("node.yaml", nil, n.words(), s.Cluster, "nodes", n.Name+".yaml"))
		}
		if err := errors.Join(files...); err != nil {
			return err
		}
	}
	if err := p.check(dir); err != nil {
		return err
	}
	// sudo may not search the folder of this program.
	program, err := os.Executable()
	if err != nil {
		return err
	}
	nodes, words, how := slices.Concat(p.Client.Nodes, p.Server.Nodes), p.words(dir, program), StartName
	switch {
	case p.Here:
		how = "here.txt"
		err = render("here.sh", nodes, words, "here.sh")
	case p.Side != "":
		how, words = "side.txt", append(words, p.Own.words()...)
	}
	if err == nil {
		err = render(how, nodes, words, StartName)
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, StartName))
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// check reads the written files as gateways and nodes will.
func (p *Plan) check(dir string) error {
	var errs []error
	for _, s := range p.made() {
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
		return fmt.Errorf("%w\n%s: no file was written; change the answers that the lines above name", err,
			strings.TrimSuffix(dir, "/"))
	}
	return nil
}
