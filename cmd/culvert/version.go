package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildInfo says which build of culvert this is. The Go command stamps it from the repository that it built from.
type buildInfo struct {
	Version  string `json:"version"`            // of the module; "(devel)" outside a repository
	Revision string `json:"revision,omitempty"` // commit
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"`           // the tree had changes that are in no commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuildInfo() buildInfo {
	b := buildInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String is one line for a terminal and for a bug report.
func (b buildInfo) String() string {
	s := "culvert " + b.Version
	if b.Revision != "" {
		s += fmt.Sprintf(", commit %.12s of %s", b.Revision, b.Time)
	}
	if b.Modified {
		s += " with changes"
	}
	return s + ", " + b.Go + ", " + b.Platform
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print which build this is",
		Example: "  culvert version\n  culvert version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch b := readBuildInfo(); output {
			case "text":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), b)
				return err
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(b)
			}
			return errors.New("--output: want text or json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
