package objects

// virtualNodes are the labels of nodes that only stand for computers elsewhere: those of Liqo, of
// the virtual kubelet, and of EKS Fargate. No agent of ours can run there, and none is waited for.
// The affinity of the DaemonSets in kube/manifests has the same.
var virtualNodes = map[string]string{
	"liqo.io/type":                   "virtual-node",
	"type":                           "virtual-kubelet",
	"eks.amazonaws.com/compute-type": "fargate",
}

// Virtual reports whether a Node with these labels is a virtual one.
func Virtual(labels map[string]string) bool {
	for key, value := range virtualNodes {
		if labels[key] == value {
			return true
		}
	}
	return false
}
