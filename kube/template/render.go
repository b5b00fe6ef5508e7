package template

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Gateway is a GatewayServer or GatewayClient for which a template is rendered.
type Gateway struct {
	Name, Namespace, GatewayUID string
	ClusterID                   string // of the remote cluster
	SecretName                  string
	Spec                        Spec
}

// Spec is the part of its spec that a template can use.
type Spec struct {
	MTU      int `json:"mtu"`
	Endpoint struct {
		Addresses      []string `json:"addresses"`
		Port           int32    `json:"port"`
		Ports          []int32  `json:"ports"`
		NodePort       int32    `json:"nodePort"`
		NodePorts      []int32  `json:"nodePorts"`
		ServiceType    string   `json:"serviceType"`
		LoadBalancerIP string   `json:"loadBalancerIP"`
		Protocol       string   `json:"protocol"`
	} `json:"endpoint"`
	SecretRef struct {
		Name string `json:"name"`
	} `json:"secretRef"`
}

// Render renders a template for a gateway as Liqo's operator does. Each string is rendered, and
// becomes a number if the result is one, except in or below labels and annotations.
func Render(t map[string]any, g Gateway) (map[string]any, error) {
	made := map[string]any{"apiVersion": Field(t, "spec", "objectKind", "apiVersion"),
		"kind": Field(t, "spec", "objectKind", "kind")}
	for _, part := range []string{"metadata", "spec"} {
		rendered, err := render("spec.template."+part, Field(t, "spec", "template", part), g, part == "metadata")
		if err != nil {
			return nil, err
		}
		made[part] = rendered
	}
	return made, nil
}

// firstVariable finds the variable that decides whether a value exists at all.
var firstVariable = regexp.MustCompile(`{{\s*(\S+)\s*}}`)

func render(path string, v any, g Gateway, text bool) (any, error) {
	switch v := v.(type) {
	case nil:
		return nil, fmt.Errorf("%s: null, which ends Liqo's operator; leave the field out", path)
	case string:
		out, err := expand(path, v, g)
		if err != nil {
			return nil, err
		}
		if n, err := strconv.Atoi(out); err == nil && !text {
			return int64(n), nil
		}
		return out, nil
	case map[string]any:
		return renderMap(path, v, g, text || v["labels"] != nil || v["annotations"] != nil)
	case []any:
		all := make([]any, 0, len(v))
		for i, one := range v {
			rendered, err := render(fmt.Sprintf("%s[%d]", path, i), one, g, text)
			if err != nil {
				return nil, err
			}
			all = append(all, rendered)
		}
		return all, nil
	}
	if text {
		return fmt.Sprint(v), nil
	}
	return v, nil
}

// renderMap omits a field whose name begins with a question mark if the first variable of its value
// is empty.
func renderMap(path string, m map[string]any, g Gateway, text bool) (any, error) {
	made := make(map[string]any, len(m))
	for name, value := range m {
		optional := false
		if bare, ok := strings.CutPrefix(name, "?"); ok {
			s, _ := value.(string)
			if found := firstVariable.FindStringSubmatch(s); found != nil {
				name, value, optional = bare, "{{if "+found[1]+"}}"+s+"{{end}}", true
			}
		}
		rendered, err := render(path+"."+name, value, g, text)
		if err != nil {
			return nil, err
		}
		if !optional || rendered != "" {
			made[name] = rendered
		}
	}
	return made, nil
}
