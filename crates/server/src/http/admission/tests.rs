//! Tests of the part of an answer that a bound token sees.

use serde_json::json;

use super::*;

#[test]
fn bound_token_sees_its_volumes_and_no_list_that_is_not_known() {
    let mine = BTreeSet::from(["db".to_owned()]);
    let mut list = json!([{"name": "db"}, {"name": "dbx"}, {"name": "db@s/lun"}, {"name": 1}, {}, "db"]);
    narrow(&mut list, Of::Listed("name"), &mine);
    assert_eq!(list, json!([{"name": "db"}, {"name": "db@s/lun"}]));
    let mut none = json!([{"name": "db"}]);
    narrow(&mut none, Of::Listed(""), &mine);
    assert_eq!(none, json!([]));
    let mut jobs =
        json!([{"kind": "volume check", "subject": "db"}, {"kind": "bucket check", "subject": "db"}]);
    narrow(&mut jobs, Of::Listed("subject"), &mine);
    assert_eq!(jobs.as_array().unwrap().len(), 1);
    let mut status = json!({
        "version": "1", "nbd": ["127.0.0.1:1"], "volumes": [{"name": "db"}, {"name": "other"}],
        "exports": [{"name": "db/a"}, {"name": "other/a"}, {"name": "db"}],
        "devices": [{"name": "db"}], "later": [{"name": "db"}],
        "problems": [{"subject": "db"}, {"subject": "db/a"}, {"subject": "server"}],
    });
    narrow(&mut status, Of::Status, &mine);
    assert_eq!(
        status,
        json!({
            "version": "1", "nbd": ["127.0.0.1:1"], "volumes": [{"name": "db"}], "exports": [{"name": "db/a"}],
            "devices": [], "later": [], "problems": [{"subject": "db"}, {"subject": "db/a"}],
        })
    );
    let mut odd = json!({"name": "db"});
    narrow(&mut odd, Of::Listed("name"), &mine);
    assert_eq!(odd, Value::Null);
}
