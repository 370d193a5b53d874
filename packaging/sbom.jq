# A CycloneDX 1.5 list of the crates in the program, from `cargo metadata`: those that cairn-cli needs
# to run, and to be built. $checksums has [name, version, sha256] of Cargo.lock.
def reached($nodes; $ids):
  ($ids + [$ids[] | $nodes[.][]] | unique) as $more
  | if ($more | length) == ($ids | length) then $ids else reached($nodes; $more) end;
($checksums[0] | map({("\(.[0]) \(.[1])"): .[2]}) | add) as $sums
| ([.packages[] | {(.id): .}] | add) as $packages
| ([.resolve.nodes[] | {(.id): [.deps[] | select(any(.dep_kinds[]; .kind != "dev")) | .pkg]}] | add) as $nodes
| (.packages[] | select(.name == "cairn-cli") | .id) as $root
| def reference($id): $packages[$id] | "pkg:cargo/\(.name)@\(.version)";
{
  bomFormat: "CycloneDX",
  specVersion: "1.5",
  serialNumber: ("urn:uuid:" + ($digest | "\(.[0:8])-\(.[8:12])-4\(.[13:16])-8\(.[17:20])-\(.[20:32])")),
  version: 1,
  metadata: {
    timestamp: ($time | todate),
    component: {
      type: "application", name: "cairn", version: $version, "bom-ref": reference($root),
      licenses: [{expression: "Apache-2.0"}], hashes: [{alg: "SHA-256", content: $digest}]
    }
  },
  components: [
    reached($nodes; [$root])[] | select(. != $root) | $packages[.]
    | ("\(.name) \(.version)") as $key
    | {
        type: "library", name, version, "bom-ref": "pkg:cargo/\(.name)@\(.version)",
        purl: "pkg:cargo/\(.name)@\(.version)"
      }
      + (if .license then {licenses: [{expression: (.license | gsub("/"; " OR "))}]} else {} end)
      + (if $sums[$key] then {hashes: [{alg: "SHA-256", content: $sums[$key]}]} else {} end)
  ],
  dependencies: [
    reached($nodes; [$root])[] | {ref: reference(.), dependsOn: [$nodes[.][] | reference(.)] | unique}
  ]
}
