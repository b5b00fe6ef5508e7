package gather

import (
	"regexp"
	"strings"
	"time"
)

// words are the fields of JSON, and keys of a log, whose text is a sentence or a word of culvert's
// or of Kubernetes', and no name. All others have names.
var words = set(`
	action apiVersion architecture by cause changes containerRuntimeVersion copyReason costs differs direction
	dnsPolicy effect encap error event externalTrafficPolicy family fault field for found go imagePullPolicy
	internalTrafficPolicy ipFamilies ipFamilyPolicy kernelVersion kind kubeProxyVersion kubeletVersion level
	listener match means message mode msg narrow operatingSystem operator osImage phase platform policyTypes
	preemptionPolicy priorityClassName protocol qosClass reason refused refusedReply remedy restartPolicy revision
	role schedulerName sessionAffinity stage state status terminationMessagePolicy text time topologyKey tunnel
	type uses verb version waiting was what whenUnsatisfiable why
	add admit drop fieldPath medium podsFrom recursiveReadOnly scheme
	buildDate compiler gitCommit gitTreeState gitVersion goVersion major minor`)

// enums are those of them that have one of a few words, which stays even if somebody has that name.
var (
	enums = set(`
	admit apiVersion architecture cause copyReason direction dnsPolicy effect encap event externalTrafficPolicy family
	imagePullPolicy internalTrafficPolicy ipFamilies ipFamilyPolicy kind level listener mode narrow operatingSystem
	operator phase podsFrom policyTypes preemptionPolicy protocol qosClass reason restartPolicy role scheme
	sessionAffinity stage state status terminationMessagePolicy type verb`)
	enum = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,40}$`)
)

// plainWords are values that are no name of anybody.
var plainWords = set(`
	culvert culvert-nodes culvert-gateway culvert-node default kube-system kube-public kube-node-lease kubernetes
	kubelet kube-proxy kube-scheduler default-scheduler kube-controller-manager deployment-controller
	daemonset-controller replicaset-controller node-controller service-controller endpoint-slice-controller cluster.local
	tunnel inside outside wireguard wireguard6 geneve vxlan tun auto metrics health http https tcp udp sctp icmp icmpv6
	TCP UDP SCTP IPv4 IPv6 true false True False linux amd64 arm64 none any
	api apis v1 v2 apps core discovery.k8s.io coordination.k8s.io networking.k8s.io authorization.k8s.io culvert.io
	v1alpha1 v1beta1 namespaces pods services nodes peerings tunnelnodes deployments daemonsets replicasets events leases
	endpointslices networkpolicies exec log version get list watch create update patch delete pods/exec pods/log
	etc run var lib usr bin home proc sys dev net tmp root opt class
	gateway gateways node nodes logs status rules routes connections doctor
	healthz readyz virtual-node virtual-kubelet fargate kube-root-ca.crt
	network mapping mss outbound return remap service incoming outgoing gw-ext remap-podcidr remap-externalcidr
	service-nodeport-routing unknown-source mss-clamping mss-clamping-6 mss-clamping-in mss-clamping-out
	unknown-source-6 mark-to-conntrack conntrack-mark-to-meta-mark
	masquerade nat filter mangle input output prerouting postrouting forward`)

func set(text string) map[string]bool {
	m := map[string]bool{}
	for _, word := range strings.Fields(text) {
		m[word] = true
	}
	return m
}

// kinds are the kinds of objects that stand before a namespace and a name.
var kinds = set(kindWords)

const kindWords = `
	Peering TunnelNode Node Pod Service EndpointSlice Deployment DaemonSet ReplicaSet Namespace Lease Secret Event
	NetworkPolicy ServiceCIDR ServiceAccount Role RoleBinding ClusterRole ClusterRoleBinding
	FirewallConfiguration RouteConfiguration Configuration Connection GatewayServer GatewayClient InternalNode
	InternalFabric GeneveTunnel PublicKey IP ForeignCluster VirtualNode NetworkConfiguration`

func isKind(text string) bool { return kinds[text] }

var (
	quantity = regexp.MustCompile(`^:?[0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|Ki|Mi|Gi|Ti|k|M|G|%)?$`)
	digits   = regexp.MustCompile(`^[0-9]{6,}$`) // longer than a port
)

// plain reports whether a text is no name: empty, a number, a time, or a word that everybody has.
func plain(text string) bool {
	if text == "" || plainWords[text] || plainDomain(text) || quantity.MatchString(text) && !digits.MatchString(text) {
		return true
	}
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}

// fileEndings are the last parts of names that are no host's.
var fileEndings = set("yaml yml json sock key pub log md go sh service conf toml txt state")

// plainKey reports whether a label's key belongs to Kubernetes, culvert or Liqo.
func plainKey(label string) bool {
	domain, _, ok := strings.Cut(label, "/")
	if !ok {
		return plainLabels[label]
	}
	return domain == "culvert" || plainDomain(domain)
}

// plainDomain reports whether a domain is that of Kubernetes, culvert or Liqo.
func plainDomain(domain string) bool {
	for _, of := range []string{"kubernetes.io", "k8s.io", "culvert.io", "liqo.io"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return false
}

var plainLabels = set("app k8s-app name component tier version role type pod-template-hash controller-revision-hash " +
	"pod-template-generation")

// plainHost reports whether what looks like a host's name is a field, a version or a public domain.
func plainHost(text string) bool {
	first, _, _ := strings.Cut(text, ".")
	last := text[strings.LastIndexByte(text, '.')+1:]
	return roots[first] || plainWords[text] || camel.MatchString(first) || camel.MatchString(last) ||
		version.MatchString(text) || plainDomain(text)
}

var (
	camel   = regexp.MustCompile(`^[a-z]+[A-Z]`) // a field
	version = regexp.MustCompile(`^(v|go)?[0-9]+(\.[0-9]+[a-z%µ]{0,2})+([-+~][A-Za-z0-9.+~-]*)?$`)
)

// roots are the first parts of the paths of fields.
var roots = set(`
	spec status metadata wireguard geneve network nat services rules log state cpus memory mtu remote local
	tunnel interface rp_filter conf ipv4 ipv6 net sys table
	podCIDRs e i`)
