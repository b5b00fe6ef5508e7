package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"culvert/gateway/control"
	"culvert/integration/lab/holder"
)

// program is the culvert that a lab runs as gateways and nodes.
type program struct{ file string }

func (p *program) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.file, "culvert", "",
		"the culvert to run, a `FILE` of the same version; without it, the one in the folder of culvert-lab")
}

// find returns the path of culvert. It refuses another version, whose configuration and output may
// differ from what this lab expects.
func (p *program) find(cmd *cobra.Command) (string, error) {
	file := p.file
	if file == "" {
		own, err := os.Executable()
		if err != nil {
			return "", err
		}
		file = filepath.Join(filepath.Dir(own), "culvert")
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("--culvert: %w", err)
	}
	if _, ok := holder.Inside(); ok {
		return file, nil // the holder's parent has checked
	}
	text, err := exec.CommandContext(cmd.Context(), file, "version", "-o", "json").Output()
	if err != nil {
		return "", fmt.Errorf("--culvert: %w; build both with make build, or name a culvert", err)
	}
	var theirs control.Version
	if err := json.Unmarshal(text, &theirs); err != nil {
		return "", fmt.Errorf("--culvert: %s does not print its version as culvert does: %w", file, err)
	}
	if own := control.ReadVersion(); theirs != own {
		return "", fmt.Errorf("--culvert: %s is %s, but this lab needs %s; build both with make build",
			file, theirs, own)
	}
	return file, nil
}
